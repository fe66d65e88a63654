"""Score hypotheses against references: sclite's table, alignments, confusions, confidence intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tympan.config import argument, option, parse_args

if TYPE_CHECKING:
    from tympan.score.result import ScoreResult
    from tympan.score.significance import Comparison, Interval
    from tympan.score.transcripts import Unit

OUTPUTS = ("ref.trn", "hyp.trn", "result.txt", "confusions.txt", "RESULTS.md", "score.json")


@dataclass(frozen=True)
class Options:
    ref: Path = argument(help="reference: a Kaldi `text` file, or a sclite .trn file")
    hyp: Path = argument(help="hypothesis: a Kaldi `text` file, or a sclite .trn file")
    unit: Literal["char", "word", "token", "mixed"] | None = option(
        None, help="unit to score; mixed: Chinese per character, the rest per word (default: token for .trn, else word)"
    )
    compare: Path | None = option(
        None, help="second hypothesis for the same references, for a paired significance test"
    )
    output_dir: Path | None = option(None, help=f"output directory for {', '.join(OUTPUTS[:-1])} and {OUTPUTS[-1]}")
    utt2spk: Path | None = option(
        None, help="utt2spk file (default: utt2spk next to REF, else the utterance id up to its first '-')"
    )
    case_sensitive: bool = option(False, help="distinguish upper and lower case")
    remove_space: bool = option(False, help="with --unit char, ignore the spaces of a Kaldi text")
    non_linguistic_symbols: Path | None = option(None, help="file of symbols to remove before scoring")
    sclite_compat: bool = option(
        False, help="ignore references without a hypothesis, as sclite does; false: count them as deletions"
    )
    alignments: bool = option(False, help="also print the alignment of every utterance")


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_args(Options, argv, prog="tympan score", description=__doc__)

    from tympan.score import sclite
    from tympan.score.inputs import check_overwriting, default_unit, score_files
    from tympan.score.sclite_table import summary_table
    from tympan.score.significance import bootstrap_interval, compare

    if options.output_dir is not None:
        given = (options.ref, options.hyp, options.compare, options.utt2spk, options.non_linguistic_symbols)
        check_overwriting((options.output_dir / name for name in OUTPUTS), given, option="--output_dir")
    unit = options.unit or default_unit(options.ref)
    hypotheses = [path for path in (options.hyp, options.compare) if path is not None]
    results = [
        score_files(
            options.ref,
            hyp,
            unit=unit,
            utt2spk=options.utt2spk,
            case_sensitive=options.case_sensitive,
            remove_space=options.remove_space,
            non_linguistic_symbols=options.non_linguistic_symbols,
            drop_missing=options.sclite_compat,
        )
        for hyp in hypotheses
    ]
    first = results[0]
    print(sclite.render(first) if options.alignments else summary_table(first, percentages=True))
    intervals = [bootstrap_interval(result) for result in results[: 2 if options.output_dir else 1]]
    print(f"\n{_sentence(first, unit, intervals[0])}")
    if first.missing:
        what = "ignored" if options.sclite_compat else "counted as deletions"
        print(f"{len(first.missing)} references without a hypothesis were {what}")
    comparison = compare(*results) if len(results) == 2 else None
    if comparison is not None:
        print(f"{options.compare}: error rate {results[1].total.error_rate:.2f} %, {comparison}")
    if options.output_dir is not None:
        _write(options.output_dir, results, hypotheses, unit=unit, intervals=intervals, comparison=comparison)
        print(f"written to {options.output_dir}")
    return 0


def _sentence(result: ScoreResult, unit: str, interval: Interval | None) -> str:
    total = result.total
    spread = ""
    if interval is not None:
        spread = f" ({100 * interval.level:.0f}% CI: {interval.low:.2f} to {interval.high:.2f})"
    return (
        f"{unit} error rate {total.error_rate:.2f} %{spread}: "
        f"{total.errors} errors in {total.words}; {total.wrong_sentences} of {total.sentences} sentences wrong"
    )


def _write(
    directory: Path,
    results: Sequence[ScoreResult],
    hypotheses: Sequence[Path],
    *,
    unit: Unit,
    intervals: Sequence[Interval | None],
    comparison: Comparison | None,
) -> None:
    from tympan.runtime.atomic import atomic_write
    from tympan.score.inputs import short_names
    from tympan.score.score_dir import contents

    files = contents(results, names=short_names(hypotheses), unit=unit, intervals=intervals, comparison=comparison)
    for name in OUTPUTS:
        with atomic_write(directory / name) as stream:
            stream.write(files[name])


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
