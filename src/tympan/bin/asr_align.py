"""Align transcripts to their recordings with CTC or a transducer: the time and confidence of every word."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

from tympan.config import argument, option, parse_args
from tympan.decode.options import DecodeDeviceOptions, ImportOptions, PieceOptions
from tympan.decode.settings import RULES
from tympan.errors import UserError

if TYPE_CHECKING:
    from tympan.data.kaldi_dir import DataDir, Segment
    from tympan.decode.hypothesis import Hypothesis
    from tympan.decode.recognizer import Recognizer
    from tympan.decode.session import Speech


@dataclass(frozen=True, kw_only=True)
class Options(PieceOptions, DecodeDeviceOptions, ImportOptions):
    model: str = argument(help="folder made by `tympan pack`, experiment directory, or OWNER/NAME on a model hub")
    data_dir: Path | None = option(None, help="Kaldi-style data directory with wav.scp (and segments) and text")
    audio: Path | None = option(None, help="align a single recording instead of a data directory")
    text: str | None = option(None, help="transcript of --audio")
    format: Literal["ctm", "json", "srt"] = option(
        "ctm", help="output format; json also has token times; srt needs --audio"
    )
    output: Path | None = option(
        None, help="output file (default: the terminal); written as FILE.partial until it is complete"
    )
    allow_pipes: bool = option(False, help="run the commands of wav.scp lines that end with '|'")


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_args(Options, argv, prog="tympan asr_align", description=__doc__, rules=RULES)

    if (options.data_dir is None) == (options.audio is None):
        raise UserError("nothing to align: give --data_dir DIR, or --audio FILE with --text 'WORDS'")
    if options.audio is not None and options.text is None:
        raise UserError("--audio needs --text with the transcript of the recording")
    if options.data_dir is not None and options.text is not None:
        raise UserError("--text can only be used with --audio: a data directory has its own text file")
    if options.text is not None and not options.text.strip():
        raise UserError("--text is empty: give the transcript of the recording")
    if options.format == "srt" and options.data_dir is not None:
        raise UserError("--format srt is for one recording (--audio); use ctm or json for a data directory")

    from tympan.decode.options import BatchLimits
    from tympan.decode.recognizer import Recognizer
    from tympan.runtime.device import choose_kind

    recognizer = Recognizer.from_pretrained(
        options.model,
        device=choose_kind(ngpu=options.ngpu, device=options.device),
        allow_import=options.allow_import,
        limits=BatchLimits(max_piece_s=options.max_piece_s, channel=options.channel),
    )
    recognizer.require_one_speaker("alignment is for models of one speaker")
    faults = 0
    given = _given(recognizer, options)
    with _written_as_it_comes(options.output) as stream:
        for name, speech, text in given:
            try:
                hypothesis = _aligned(recognizer, speech, text)
            except UserError as error:
                print(f"tympan: not aligned: {name}: {error}", file=sys.stderr)
                faults += 1
                continue
            print(
                _formatted(options.format, name, hypothesis),
                end="",
                file=stream,
                flush=True,
            )
            faults += _warn_of_unknown(name, recognizer.given_text(text).unknown)
    return 1 if faults else 0


@contextmanager
def _written_as_it_comes(output: Path | None) -> Iterator[IO[str]]:
    """The terminal, or a file that is named FILE.partial until it is complete. After a kill, FILE.partial remains."""
    if output is None:
        yield sys.stdout
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    from tympan.runtime.atomic import naming

    partial = output.with_name(f"{output.name}.partial")
    with naming(partial), partial.open("w", encoding="utf-8") as stream:
        yield stream
    partial.replace(output)


def _aligned(recognizer: Recognizer, speech: Speech, text: str) -> Hypothesis:
    """UserError also if memory runs out for this recording, so that the next one is still aligned."""
    from tympan.runtime.memory import is_out_of_memory, out_of_memory

    if isinstance(speech, UserError):
        raise speech
    try:
        return recognizer.align(speech, text)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(
            out_of_memory(
                error, remedy="Lower --max_piece_s, cut the recording (with a `segments` file), or free memory."
            )
        ) from None


def _given(recognizer: Recognizer, options: Options) -> Iterable[tuple[str, Speech, str]]:
    """(name, speech, text)."""
    if options.audio is not None:
        return [(options.audio.stem, recognizer.read(options.audio), options.text or "")]
    from tympan.data.kaldi_dir import DataDir

    assert options.data_dir is not None
    data = DataDir.read(options.data_dir)
    if not data.text:
        raise UserError(f"{options.data_dir}: there is no text to align")
    return _parts(recognizer, data, options)


def _parts(recognizer: Recognizer, data: DataDir, options: Options) -> Iterator[tuple[str, Speech, str]]:
    assert options.data_dir is not None
    left, without_text = dict(data.text), 0
    for name, source, segment in data.parts():
        text = left.pop(name, None)
        if text is None:
            without_text += 1
        else:
            yield name, _read(recognizer, replace(segment, recording=source), options), text
    for name in left:
        yield name, UserError(f"{options.data_dir / 'text'} has its text, but there is no recording"), ""
    if without_text:
        print(f"tympan: {without_text} recordings have no text and were skipped", file=sys.stderr)


def _read(recognizer: Recognizer, segment: Segment, options: Options) -> Speech:
    try:
        return recognizer.reader.read_segment(segment, base=options.data_dir, allow_pipes=options.allow_pipes)
    except UserError as error:
        return error


def _warn_of_unknown(name: str, unknown: tuple[str, ...]) -> bool:
    """Print warnings; return whether there were any."""
    from tympan.decode.alignment import name_some

    if unknown:
        print(
            f"tympan: warning: {name}: the model does not know {name_some(unknown)}, so the times there are unreliable",
            file=sys.stderr,
        )
    return bool(unknown)


def _formatted(kind: str, name: str, hypothesis: Hypothesis) -> str:
    from tympan.decode.output import ctm, srt
    from tympan.decode.words import words_of

    if kind == "json":
        return json.dumps({"id": name, **hypothesis.as_dict()}, ensure_ascii=False) + "\n"
    words = words_of(hypothesis)
    return srt(words) if kind == "srt" else ctm(name, words)


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
