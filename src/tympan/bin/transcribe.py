"""Transcribe recordings with a packed model: text on the terminal, or JSON, subtitles, time marks."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from tympan.config import argument, option, parse_args
from tympan.errors import UserError

SUFFIXES = {"text": ".txt", "json": ".json", "srt": ".srt", "ctm": ".ctm"}


@dataclass(frozen=True)
class Options:
    model: str = argument(help="folder made by `tympan pack`, experiment directory, or OWNER/NAME on a model hub")
    files: list[Path] = argument(help="recordings: wav, flac, mp3, ogg, ... at any rate")
    json: bool = option(False, help="tokens, times and confidences, one JSON object a line")
    srt: bool = option(False, help="subtitles")
    ctm: bool = option(False, help="words with times, NIST's format")
    output_dir: Path | None = option(None, help="write NAME.txt, NAME.json, ... there instead of the terminal")
    search: Literal["joint", "ctc_greedy", "ctc_prefix", "rescore", "lexicon"] | None = option(
        None, help="instead of the model's"
    )
    beam_size: int | None = option(None, help="instead of the model's", group="search")
    ctc_weight: float | None = option(None, help="instead of the model's", group="search")
    lm_weight: float | None = option(None, help="instead of the model's", group="search")
    ngram_weight: float | None = option(None, help="instead of the model's", group="search")
    penalty: float | None = option(None, help="instead of the model's", group="search")
    maxlenratio: float | None = option(None, help="instead of the model's", group="search")
    batch_size: int = option(16, help="pieces decoded together", group="work")
    max_piece_s: float = option(30.0, help="longer recordings are cut at pauses; 0: never", group="work")
    ngpu: int = option(0, help="accelerators: 0 or 1", group="work")
    device: Literal["cpu", "cuda", "npu", "mps"] | None = option(None, help="kind of accelerator", group="work")
    dtype: Literal["float16", "bfloat16", "float32", "float64"] = option("float32", help="number format", group="work")
    allow_import: bool = option(False, help="allow a config to name a class of yours, and run its code", group="work")


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_args(Options, argv, prog="tympan transcribe", description=__doc__)

    formats = [name for name in ("json", "srt", "ctm") if getattr(options, name)] or ["text"]
    if len(formats) > 1 and options.output_dir is None:
        raise UserError(f"--{' and --'.join(formats)} together need --output_dir: the terminal takes one of them")
    if options.srt and len(options.files) > 1 and options.output_dir is None:
        raise UserError("--srt of several recordings needs --output_dir: subtitles are one document each")
    if options.output_dir is not None:
        _check_names(options.files)
    names = _ctm_names(options.files)
    recognizer = _recognizer(options)
    failures = 0
    for path, hypothesis in _transcribed(recognizer, options.files):
        if isinstance(hypothesis, str):
            named = hypothesis if hypothesis.startswith(f"{path}:") else f"{path}: {hypothesis}"
            print(f"tympan: not transcribed: {named}", file=sys.stderr)
            failures += 1
            continue
        for name in formats:
            text = _formatted(name, path, hypothesis, ctm_name=names[path], space_symbol=recognizer.space_symbol)
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
            raise UserError(f"--output_dir would hold {path.stem}.* of both {other} and {path}: transcribe them apart")


def _ctm_names(files: Sequence[Path]) -> dict[Path, str]:
    """The shortest names that tell the recordings apart: a; x/a and y/a; x/a.wav and x/a.flac."""
    different = set(files)
    for short in (lambda path: path.stem, lambda path: str(path.with_suffix("")), str):
        # Blanks become '_' in a CTM.
        names = {path: "_".join(short(path).split()) for path in different}
        if len(set(names.values())) == len(different):
            break
    return names


def _recognizer(options: Options) -> Any:
    from tympan.decode.recognizer import BatchLimits, Recognizer
    from tympan.decode.settings import DecodeSettings
    from tympan.runtime.device import choose_kind

    names = [item.name for item in fields(DecodeSettings) if getattr(options, item.name, None) is not None]
    return Recognizer.from_pretrained(
        options.model,
        device=choose_kind(ngpu=options.ngpu, device=options.device),
        dtype=options.dtype,
        allow_import=options.allow_import,
        limits=BatchLimits(batch_size=options.batch_size, max_piece_s=options.max_piece_s),
        **{name: getattr(options, name) for name in names},
    )


def _transcribed(recognizer: Any, paths: Sequence[Path]) -> Iterator[tuple[Path, Any]]:
    """(path, hypothesis or what is wrong), in the order given. Short recordings are decoded together."""
    limits = recognizer.limits
    waiting: list[tuple[Path, Any]] = []
    seconds = 0.0
    for path in paths:
        try:
            samples = recognizer.read(path)
            recognizer.check_length(samples)
        except UserError as error:
            waiting.append((path, str(error)))
        else:
            waiting.append((path, samples))
            seconds += recognizer.duration_s(samples)
        if len(waiting) >= limits.batch_size or seconds >= limits.max_batch_s:
            yield from _recognized(recognizer, waiting)
            waiting, seconds = [], 0.0
    yield from _recognized(recognizer, waiting)


def _recognized(recognizer: Any, waiting: Sequence[tuple[Path, Any]]) -> list[tuple[Path, Any]]:
    """The samples replaced by their hypotheses, or by what went wrong."""
    places = [place for place, (_, found) in enumerate(waiting) if not isinstance(found, str)]
    results = list(waiting)
    try:
        for number, hypotheses in recognizer.recognize([waiting[place][1] for place in places]):
            results[places[number]] = (waiting[places[number]][0], hypotheses[0])
    except UserError as error:
        if len(waiting) == 1:
            return [(waiting[0][0], str(error))]
        return [result for item in waiting for result in _recognized(recognizer, [item])]
    return results


def _formatted(name: str, path: Path, hypothesis: Any, *, ctm_name: str, space_symbol: str) -> str:
    from tympan.decode.formats import ctm, srt, words_of

    if name == "json":
        return json.dumps({"file": str(path), **hypothesis.as_dict()}, ensure_ascii=False) + "\n"
    if name == "text":
        return f"{hypothesis.text}\n"
    words = words_of(hypothesis, space_symbol=space_symbol)
    if not words and hypothesis.text:
        raise UserError(f"--{name} needs times, and this model was trained without CTC")
    return srt(words) if name == "srt" else ctm(ctm_name, words)


def _write(path: Path, text: str) -> None:
    from tympan.runtime.atomic import atomic_write

    with atomic_write(path) as stream:
        stream.write(text)


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
