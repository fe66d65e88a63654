"""Align given texts to their recordings by CTC: when each word is said, and how surely."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tympan.config import argument, option, parse_args
from tympan.errors import UserError


@dataclass(frozen=True)
class Options:
    model: str = argument(help="folder made by `tympan pack`, experiment directory, or OWNER/NAME on a model hub")
    data_dir: Path | None = option(None, help="Kaldi-style data directory with wav.scp (and segments) and text")
    audio: Path | None = option(None, help="instead: one recording ...")
    text: str | None = option(None, help="... and its text")
    format: Literal["ctm", "json", "srt"] = option("ctm", help="json has tokens, too; srt is for one recording")
    output: Path | None = option(None, help="file to write instead of the terminal")
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
    if options.text is not None and not options.text.strip():
        raise UserError("--text is empty: it says what is said in the recording")
    if options.format == "srt" and options.data_dir is not None:
        raise UserError("--format srt is for one recording (--audio); use ctm or json for a data directory")

    from tympan.decode.recognizer import Recognizer
    from tympan.runtime.atomic import atomic_write
    from tympan.runtime.device import choose_kind

    recognizer = Recognizer.from_pretrained(
        options.model, device=choose_kind(ngpu=options.ngpu, device=options.device), allow_import=options.allow_import
    )
    lines, faults = [], 0
    for name, samples, text in _given(recognizer, options):
        try:
            if isinstance(samples, UserError):
                raise samples
            lines.append(_formatted(options.format, name, recognizer.align(samples, text)))
        except UserError as error:
            print(f"tympan: not aligned: {name}: {error}", file=sys.stderr)
            faults += 1
        else:
            faults += _warn_of_unknown(name, recognizer.given_text(text).unknown)
    if options.output is None:
        print("".join(lines), end="")
    else:
        with atomic_write(options.output) as stream:
            stream.writelines(lines)
    return 1 if faults else 0


def _given(recognizer: Any, options: Options) -> Iterator[tuple[str, Any, str]]:
    """(name, samples or what is wrong with them, text)."""
    if options.audio is not None:
        yield options.audio.stem, recognizer.read(options.audio), options.text or ""
        return
    from tympan.data.audio import read_audio
    from tympan.data.kaldi_dir import DataDir

    assert options.data_dir is not None
    data = DataDir.read(options.data_dir)
    if not data.text:
        raise UserError(f"{options.data_dir}: there is no text to align")
    without_text = 0
    left = dict(data.text)
    for name, source, segment in data.parts():
        if left.pop(name, None) is None:
            without_text += 1
            continue
        try:
            audio = read_audio(
                source,
                rate=recognizer.rate,
                channel=0,
                start_s=segment.start_s,
                end_s=segment.end_s,
                allow_pipes=options.allow_pipes,
                base=options.data_dir,
            )
            yield name, audio.samples, data.text[name]
        except UserError as error:
            yield name, error, ""
    for name in left:
        yield name, UserError(f"it is in {options.data_dir / 'text'}, but there is no recording of it"), ""
    if without_text:
        print(f"tympan: {without_text} recordings have no text and were left out", file=sys.stderr)


def _warn_of_unknown(name: str, unknown: tuple[str, ...]) -> bool:
    """Whether there was something to warn of."""
    from tympan.decode.given_text import name_some

    if unknown:
        print(
            f"tympan: warning: {name}: the model does not know {name_some(unknown)}: do not trust the times there",
            file=sys.stderr,
        )
    return bool(unknown)


def _formatted(kind: str, name: str, hypothesis: Any) -> str:
    from tympan.decode.formats import ctm, srt, words_of

    if kind == "json":
        return json.dumps({"id": name, **hypothesis.as_dict()}, ensure_ascii=False) + "\n"
    words = words_of(hypothesis)
    return srt(words) if kind == "srt" else ctm(name, words)


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
