"""Write report.html: the errors of a recognizer, with audio and spectrograms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from tympan.config import argument, option, parse_args
from tympan.config.mistakes import Mistakes


@dataclass(frozen=True)
class Options:
    ref: Path = argument(help="reference: a Kaldi `text` file, or a sclite .trn file")
    hyp: Path = argument(help="hypothesis: a Kaldi `text` file, or a sclite .trn file")
    compare: Path | None = option(None, help="a second hypothesis, shown side by side")
    output: Path = option(Path("report.html"), help="HTML file to write")
    title: str | None = option(None, help="title of the page (default: path of the hypothesis)")
    data_dir: Path | None = option(None, help="Kaldi-style data directory with the audio (wav.scp, segments)")
    embed_audio: bool = option(False, help="embed the audio in the page; false: link to the audio files")
    spectrograms: int = option(
        500, help="maximum number of spectrograms, for the utterances with the most errors", least=0
    )
    unit: Literal["char", "word", "token", "mixed"] | None = option(None, help="unit to score, see `tympan score`")
    utt2spk: Path | None = option(None, help="utt2spk file (default: utt2spk next to REF)")
    case_sensitive: bool = option(False, help="distinguish upper and lower case")
    remove_space: bool = option(False, help="with --unit char, ignore the spaces of a Kaldi text")
    non_linguistic_symbols: Path | None = option(None, help="file of symbols to remove before scoring")
    sclite_compat: bool = option(
        False, help="ignore references without a hypothesis, as sclite does; false: count them as deletions"
    )
    nj: int = option(1, help="number of processes that read audio", least=1)
    allow_pipes: bool = option(False, help="run the commands of wav.scp lines that end with '|'")


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_args(Options, argv, prog="tympan report", description=__doc__)
    _check(options)

    from tympan.score.inputs import check_overwriting, default_unit, score_files, short_names
    from tympan.score.media import collect_media
    from tympan.score.report import write_report

    check_overwriting([options.output], _inputs(options), option="--output")
    unit = options.unit or default_unit(options.ref)
    hypotheses = [hyp for hyp in (options.hyp, options.compare) if hyp is not None]
    results = [
        replace(
            score_files(
                options.ref,
                hyp,
                unit=unit,
                utt2spk=options.utt2spk,
                case_sensitive=options.case_sensitive,
                remove_space=options.remove_space,
                non_linguistic_symbols=options.non_linguistic_symbols,
                drop_missing=options.sclite_compat,
            ),
            name=name,
        )
        for hyp, name in zip(hypotheses, short_names(hypotheses), strict=True)
    ]
    media = {}
    if options.data_dir is not None:
        by_errors = sorted(results[0].utterances, key=lambda utterance: -utterance.counts.errors)
        media = collect_media(
            options.data_dir,
            [utterance.id for utterance in results[0].utterances],
            report=options.output,
            embed_audio=options.embed_audio,
            pictured={utterance.id for utterance in by_errors[: options.spectrograms]},
            nj=options.nj,
            allow_pipes=options.allow_pipes,
        )
    title = options.title or " and ".join(map(str, hypotheses))
    write_report(options.output, results, unit=unit, title=title, media=media)
    print(
        f"{options.output}: error rate {results[0].total.error_rate:.2f} % over {len(results[0].utterances)} utterances"
    )
    return 0


def _inputs(options: Options) -> list[Path | None]:
    """Files that the page must not overwrite: those given, and those read without being given."""
    from tympan.data.kaldi_dir import known_files

    data = options.data_dir
    tables = [data / name for name in known_files(data)] if data is not None and data.is_dir() else []
    beside = options.ref.parent / "utt2spk"
    named = [options.ref, options.hyp, options.compare, options.utt2spk, options.non_linguistic_symbols]
    return [*named, beside, *tables]


def _check(options: Options) -> None:
    mistakes = Mistakes()
    if options.output.is_dir():
        mistakes.add(
            "--output", f"{options.output} is a directory: give a file, such as {options.output / 'report.html'}"
        )
    if options.embed_audio and options.data_dir is None:
        mistakes.add("--embed_audio", "needs the audio: give its data directory with --data_dir")
    mistakes.check()


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
