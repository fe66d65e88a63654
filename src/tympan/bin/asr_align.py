"""Align given texts to their recordings by CTC: when each word is said, and how surely."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from tympan.config import argument, option, parse_args
from tympan.errors import UserError


@dataclass(frozen=True)
class Options:
    model: str = argument(help="folder made by `tympan pack`, experiment directory, or OWNER/NAME on a model hub")
    data_dir: Path | None = option(None, help="Kaldi-style data directory with wav.scp (and segments) and text")
    audio: Path | None = option(None, help="instead: one recording ...")
    text: str | None = option(None, help="... and its text")
    format: Literal["ctm", "json", "srt"] = option("ctm", help="json has tokens, too; srt is for one recording")
    output: Path | None = option(None, help="file to write instead of the terminal; FILE.partial until all is done")
    max_piece_s: float = option(60.0, help="longer recordings are encoded in pieces, cut at pauses; 0: never")
    ngpu: int = option(0, help="accelerators: 0 or 1")
    device: Literal["cpu", "cuda", "npu", "mps"] | None = option(None, help="kind of accelerator")
    allow_import: bool = option(False, help="allow a config to name a class of yours, and run its code")
    allow_pipes: bool = option(False, help="run the commands that a wav.scp ends with '|'")


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_args(Options, argv, prog="tympan asr_align", description=__doc__)

    if (options.data_dir is None) == (options.audio is None):
        raise UserError("--data_dir DIR, or --audio FILE with --text 'WORDS', says what to align")
    if options.audio is not None and options.text is None:
        raise UserError("--audio needs --text, what is said in it")
    if options.data_dir is not None and options.text is not None:
        raise UserError("--text belongs to --audio: a data directory has its own text file")
    if options.text is not None and not options.text.strip():
        raise UserError("--text is empty: it says what is said in the recording")
    if options.format == "srt" and options.data_dir is not None:
        raise UserError("--format srt is for one recording (--audio); use ctm or json for a data directory")

    from tympan.decode.recognizer import BatchLimits, Recognizer
    from tympan.runtime.device import choose_kind

    recognizer = Recognizer.from_pretrained(
        options.model,
        device=choose_kind(ngpu=options.ngpu, device=options.device),
        allow_import=options.allow_import,
        limits=BatchLimits(max_piece_s=options.max_piece_s),
    )
    faults = 0
    given = _given(recognizer, options)
    with _written_as_it_comes(options.output) as stream:
        for name, samples, text in given:
            try:
                hypothesis = _aligned(recognizer, samples, text)
            except UserError as error:
                print(f"tympan: not aligned: {name}: {error}", file=sys.stderr)
                faults += 1
                continue
            print(
                _formatted(options.format, name, hypothesis, space_symbol=recognizer.space_symbol),
                end="",
                file=stream,
                flush=True,
            )
            faults += _warn_of_unknown(name, recognizer.given_text(text).unknown)
    return 1 if faults else 0


@contextmanager
def _written_as_it_comes(output: Path | None) -> Iterator[IO[str]]:
    """The terminal, or a file that has its name once it is whole: a kill leaves what was aligned beside it."""
    if output is None:
        yield sys.stdout
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = output.with_name(f"{output.name}.partial")
    with partial.open("w", encoding="utf-8") as stream:
        yield stream
    partial.replace(output)


def _aligned(recognizer: Any, samples: Any, text: str) -> Any:
    """UserError also where the memory is too small for this recording: the next one may fit."""
    from tympan.runtime.memory import is_out_of_memory, out_of_memory

    if isinstance(samples, UserError):
        raise samples
    try:
        return recognizer.align(samples, text)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(
            out_of_memory(error, remedy="Lower --max_piece_s, cut the recording (segments), or free memory.")
        ) from None


def _given(recognizer: Any, options: Options) -> Iterable[tuple[str, Any, str]]:
    """(name, samples or what is wrong with them, text)."""
    if options.audio is not None:
        return [(options.audio.stem, recognizer.read(options.audio), options.text or "")]
    from tympan.data.kaldi_dir import DataDir

    assert options.data_dir is not None
    data = DataDir.read(options.data_dir)
    if not data.text:
        raise UserError(f"{options.data_dir}: there is no text to align")
    return _parts(recognizer, data, options)


def _parts(recognizer: Any, data: Any, options: Options) -> Iterator[tuple[str, Any, str]]:
    assert options.data_dir is not None
    left, without_text = dict(data.text), 0
    for name, source, segment in data.parts():
        text = left.pop(name, None)
        if text is None:
            without_text += 1
        else:
            yield name, _read(recognizer, source, segment, options), text
    for name in left:
        yield name, UserError(f"it is in {options.data_dir / 'text'}, but there is no recording of it"), ""
    if without_text:
        print(f"tympan: {without_text} recordings have no text and were left out", file=sys.stderr)


def _read(recognizer: Any, source: str, segment: Any, options: Options) -> Any:
    """Samples, or what is wrong with them."""
    try:
        return recognizer.read_source(
            source,
            start_s=segment.start_s,
            end_s=segment.end_s,
            base=options.data_dir,
            allow_pipes=options.allow_pipes,
        )
    except UserError as error:
        return error


def _warn_of_unknown(name: str, unknown: tuple[str, ...]) -> bool:
    """Whether there was something to warn of."""
    from tympan.decode.given_text import name_some

    if unknown:
        print(
            f"tympan: warning: {name}: the model does not know {name_some(unknown)}: do not trust the times there",
            file=sys.stderr,
        )
    return bool(unknown)


def _formatted(kind: str, name: str, hypothesis: Any, *, space_symbol: str) -> str:
    from tympan.decode.formats import ctm, srt, words_of

    if kind == "json":
        return json.dumps({"id": name, **hypothesis.as_dict()}, ensure_ascii=False) + "\n"
    words = words_of(hypothesis, space_symbol=space_symbol)
    return srt(words) if kind == "srt" else ctm(name, words)


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
