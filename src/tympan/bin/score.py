"""Score hypotheses against references: sclite's table, alignments, confusions, intervals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tympan.config import argument, option, parse_args

if TYPE_CHECKING:
    from tympan.score.result import ScoredUtterance, ScoreResult

OUTPUTS = ("ref.trn", "hyp.trn", "result.txt", "confusions.txt", "RESULTS.md", "score.json")


@dataclass(frozen=True)
class Options:
    ref: Path = argument(help="reference: a Kaldi `text` file, or sclite's .trn")
    hyp: Path = argument(help="hypothesis, in either format")
    unit: Literal["char", "word", "token", "mixed"] | None = option(
        None, help="what is counted; mixed: Chinese by character, the rest by word (default: token for .trn, else word)"
    )
    compare: Path | None = option(None, help="a second hypothesis of the same references: a paired significance test")
    output_dir: Path | None = option(None, help=f"write {', '.join(OUTPUTS[:-1])} and {OUTPUTS[-1]} there")
    utt2spk: Path | None = option(None, help="speakers (default: utt2spk beside REF, else the id up to its first '-')")
    case_sensitive: bool = option(False, help="tell a from A")
    remove_space: bool = option(False, help="with --unit char, spaces of a Kaldi text do not count")
    non_linguistic_symbols: Path | None = option(None, help="file of symbols that are taken out before scoring")
    sclite_compat: bool = option(False, help="drop references that have no hypothesis, as sclite does")
    alignments: bool = option(False, help="print the alignment of every utterance, too")


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_args(Options, argv, prog="tympan score", description=__doc__)

    from tympan.score import sclite
    from tympan.score.inputs import default_unit, refuse_overwriting, score_files
    from tympan.score.sclite_table import summary_table
    from tympan.score.significance import bootstrap_interval, compare

    if options.output_dir is not None:
        given = (options.ref, options.hyp, options.compare, options.utt2spk, options.non_linguistic_symbols)
        refuse_overwriting((options.output_dir / name for name in OUTPUTS), given, option="--output_dir")
    unit = options.unit or default_unit(options.ref)

    def scored(hyp: Path) -> ScoreResult:
        return score_files(
            options.ref,
            hyp,
            unit=unit,
            utt2spk=options.utt2spk,
            case_sensitive=options.case_sensitive,
            remove_space=options.remove_space,
            non_linguistic_symbols=options.non_linguistic_symbols,
            drop_missing=options.sclite_compat,
        )

    result = scored(options.hyp)
    print(sclite.render(result) if options.alignments else summary_table(result, percentages=True))
    interval = bootstrap_interval(result)
    total = result.total
    print(
        f"\n{unit} error rate {total.error_rate:.2f} % "
        f"({interval.low:.2f} to {interval.high:.2f} with {100 * interval.level:.0f} % confidence): "
        f"{total.errors} errors in {total.words}; {total.wrong_sentences} of {total.sentences} sentences wrong"
    )
    if result.missing:
        what = "left out" if options.sclite_compat else "counted as deletions"
        print(f"{len(result.missing)} references without a hypothesis were {what}")
    if options.compare is not None:
        other = scored(options.compare)
        paired = compare(result, other)
        print(
            f"{options.compare}: {other.total.error_rate:.2f} %, {paired.difference:+.2f} points "
            f"({paired.interval.low:+.2f} to {paired.interval.high:+.2f}), p = {paired.p_value:.4f}"
        )
    if options.output_dir is not None:
        _write(result, options.output_dir, unit)
        print(f"written to {options.output_dir}")
    return 0


def _write(result: ScoreResult, directory: Path, unit: str) -> None:
    from tympan.runtime.atomic import atomic_write
    from tympan.score import sclite
    from tympan.score.results_page import results_table
    from tympan.score.significance import bootstrap_interval

    total, interval = result.total, bootstrap_interval(result)
    sides = {
        "ref.trn": [(u, [s.ref for s in u.steps if s.ref is not None]) for u in result.utterances],
        "hyp.trn": [(u, [s.hyp for s in u.steps if s.hyp is not None]) for u in result.utterances],
    }
    files = {
        name: "".join(f"{' '.join(tokens)}\t({_trn_id(u)})\n" for u, tokens in side) for name, side in sides.items()
    }
    files["result.txt"] = sclite.render(result)
    files["confusions.txt"] = "".join(f"{n}\t{ref}\t{hyp}\n" for (ref, hyp), n in result.substitutions().most_common())
    files["RESULTS.md"] = results_table({result.name: (total, interval)})
    summary = asdict(total) | {
        "unit": unit,
        "words": total.words,
        "errors": total.errors,
        "error_rate": total.error_rate,
        "interval": asdict(interval),
        "missing": list(result.missing),
    }
    files["score.json"] = json.dumps(summary, ensure_ascii=False, indent=1) + "\n"
    for name, content in files.items():
        with atomic_write(directory / name) as stream:
            stream.write(content)


def _trn_id(utterance: ScoredUtterance) -> str:
    """sclite reads the speaker from before the first '-'."""
    prefix = f"{utterance.speaker}-"
    return utterance.id if utterance.id.startswith(prefix) else prefix + utterance.id


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
