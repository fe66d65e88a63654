"""Transcribe recordings with a trained model, as text, JSON, subtitles or word times."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tympan.config import argument, option, parse_args
from tympan.decode.options import (
    RULES,
    BatchLimits,
    DecodeDeviceOptions,
    ImportOptions,
    PrecisionOptions,
    SearchOptions,
    given_options,
    part_of,
)
from tympan.errors import UserError

if TYPE_CHECKING:
    from tympan.decode.hypothesis import Hypothesis
    from tympan.decode.journal import Result
    from tympan.decode.recognizer import Recognizer
    from tympan.decode.session import Speech

SUFFIXES = {"text": ".txt", "json": ".json", "srt": ".srt", "ctm": ".ctm"}


MODEL_HELP = "folder made by `tympan pack`, experiment directory, or OWNER/NAME on a model hub"


@dataclass(frozen=True, kw_only=True)
class Options(SearchOptions, BatchLimits, DecodeDeviceOptions, PrecisionOptions, ImportOptions):
    """Search options that are not given come from the model's decode.yaml, if it has one."""

    model: str = argument(help=MODEL_HELP)
    files: list[Path] = argument(help="audio files: wav, flac, mp3, ogg, ... at any sample rate")
    json: bool = option(False, help="write tokens, times and confidences, one JSON object per recording and line")
    srt: bool = option(False, help="write subtitles in SRT format")
    ctm: bool = option(False, help="write words with times in NIST's CTM format")
    output_dir: Path | None = option(
        None, help="output directory for NAME.txt, NAME.json, ... (default: print to the terminal)"
    )


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = parse_args(Options, arguments, prog="tympan transcribe", description=__doc__, rules=RULES)

    chosen = {"json": options.json, "srt": options.srt, "ctm": options.ctm}
    formats = [name for name, is_chosen in chosen.items() if is_chosen] or ["text"]
    if len(formats) > 1 and options.output_dir is None:
        raise UserError(
            f"--{' and --'.join(formats)} together need --output_dir: only one format can be printed to the terminal"
        )
    if options.srt and len(options.files) > 1 and options.output_dir is None:
        raise UserError("--srt for several recordings needs --output_dir: each recording gets its own subtitle file")
    if options.output_dir is not None:
        _check_names(options.files)
    names = _ctm_names(options.files)
    recognizer = _recognizer(options, given_options(Options, arguments))
    failures = 0
    for path, result in _transcribed(recognizer, options.files):
        if result.error is not None:
            named = result.error if result.error.startswith(f"{path}:") else f"{path}: {result.error}"
            print(f"tympan: not transcribed: {named}", file=sys.stderr)
            failures += 1
            continue
        for name in formats:
            text = _formatted(
                name, path, result.hypotheses[0], ctm_name=names[path], space_symbol=recognizer.space_symbol
            )
            if options.output_dir is not None:
                _write(options.output_dir / f"{path.stem}{SUFFIXES[name]}", text)
            elif name == "text" and len(options.files) > 1:
                print(f"{path}\t{text}", end="", flush=True)
            else:
                print(text, end="", flush=True)
    return 1 if failures else 0


def _check_names(files: Sequence[Path]) -> None:
    """a/1.wav and b/1.wav would both be written to 1.txt."""
    first: dict[str, Path] = {}
    for path in files:
        other = first.setdefault(path.stem, path)
        if other is not path:
            raise UserError(
                f"--output_dir: {other} and {path} would both be written to {path.stem}.*; transcribe them separately"
            )


def _ctm_names(files: Sequence[Path]) -> dict[Path, str]:
    """The shortest names that distinguish the recordings: a; x/a and y/a; x/a.wav and x/a.flac."""
    different = set(files)
    shorter: tuple[Callable[[Path], str], ...] = (lambda path: path.stem, lambda path: str(path.with_suffix("")), str)
    names: dict[Path, str] = {}
    for short in shorter:
        # Spaces become '_' in a CTM.
        names = {path: "_".join(short(path).split()) for path in different}
        if len(set(names.values())) == len(different):
            break
    return names


def _recognizer(options: Options, given: set[str]) -> Recognizer:
    from tympan.decode.recognizer import Recognizer
    from tympan.runtime.device import choose_kind

    search = {name: value for name, value in vars(part_of(options, SearchOptions)).items() if name in given}
    return Recognizer.from_pretrained(
        options.model,
        device=choose_kind(ngpu=options.ngpu, device=options.device),
        dtype=options.dtype,
        allow_import=options.allow_import,
        limits=part_of(options, BatchLimits),
        **search,
    )


def _transcribed(recognizer: Recognizer, paths: Sequence[Path]) -> Iterator[tuple[Path, Result]]:
    """Results in the order given. As many recordings are read at a time as may be decoded together."""
    from tympan.decode.session import decode_together

    limits = recognizer.limits
    waiting: list[tuple[Path, Speech]] = []
    seconds = 0.0
    for index, path in enumerate(paths):
        try:
            samples = recognizer.read(path)
            recognizer.check_length(samples)
        except UserError as error:
            waiting.append((path, error))
        else:
            waiting.append((path, samples))
            seconds += recognizer.duration_s(samples)
        is_last = index + 1 == len(paths)
        if is_last or len(waiting) >= limits.batch_size or seconds >= limits.max_batch_s:
            results = decode_together(recognizer, [(str(path), speech) for path, speech in waiting])
            yield from zip([path for path, _ in waiting], results, strict=True)
            waiting, seconds = [], 0.0


def _formatted(name: str, path: Path, hypothesis: Hypothesis, *, ctm_name: str, space_symbol: str) -> str:
    from tympan.decode.output import ctm, srt, words_of

    if name == "json":
        return json.dumps({"file": str(path), **hypothesis.as_dict()}, ensure_ascii=False) + "\n"
    if name == "text":
        return f"{hypothesis.text}\n"
    words = words_of(hypothesis, space_symbol=space_symbol)
    if not words and hypothesis.text:
        raise UserError(f"--{name} needs word times, which this model cannot give: it was trained without CTC")
    return srt(words) if name == "srt" else ctm(ctm_name, words)


def _write(path: Path, text: str) -> None:
    from tympan.runtime.atomic import atomic_write

    with atomic_write(path) as stream:
        stream.write(text)


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
