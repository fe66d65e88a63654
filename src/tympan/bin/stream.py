"""Transcribe audio while it arrives, such as from a microphone, and show the text so far."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tympan.bin.transcribe import ModelOptions, load_recognizer
from tympan.config import argument, option, parse_args
from tympan.decode.espnet2_options import StreamingOptions
from tympan.decode.settings import RULES, given_options
from tympan.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from tympan.decode.hypothesis import Hypothesis
    from tympan.decode.recognizer import Recognizer

STDIN = Path("-")
HEADERS = {b"RIFF": "WAV", b"fLaC": "FLAC", b"OggS": "Ogg", b"FORM": "AIFF", b".snd": "AU", b"caff": "CAF"}
"""First bytes of audio files with a header, which can't be read as samples."""
HEADER_BYTES = 4
MOST_BYTES = 1 << 20
"""To read at once: memory for all of them is allocated before the first one is there."""


@dataclass(frozen=True, kw_only=True)
class Options(ModelOptions, StreamingOptions):
    """The model needs an encoder that works in pieces, such as `contextual_block_conformer`."""

    audio: Path = argument(
        help="audio file, read piece by piece as a test, or - for samples on standard input: 16-bit little-endian PCM "
        "with one channel at the model's sample rate, as `arecord -t raw -f S16_LE -r 16000` writes"
    )
    piece_s: float = option(
        0.2, help="duration of a piece in seconds; the text is updated after each", above=0.0, most=3600
    )
    json: bool = option(
        False, help="write one JSON object per line for every change of the text, with text, audio_s and is_final"
    )


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = parse_args(Options, arguments, prog="tympan stream", description=__doc__, rules=RULES)
    recognizer = load_recognizer(options, given_options(Options, arguments))
    stream, output = recognizer.stream(), _Output(is_json=options.json)
    with _Interrupt() as interrupt:
        for piece in _pieces(options, recognizer, interrupt):
            output.show(stream.accept(piece, rate=recognizer.rate), stream.duration_s)
    output.end(stream.finish(), stream.duration_s)
    return 0


class _Interrupt:
    """Ctrl-C is the usual end of a recording from a microphone. It ends reading and interrupts no computation."""

    def __init__(self) -> None:
        self.is_waiting = False
        self.has_come = False

    def __enter__(self) -> _Interrupt:
        self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _note(self, *given: object) -> None:
        if self.is_waiting or self.has_come:  # the second one stops at once
            raise KeyboardInterrupt
        self.has_come = True

    def read(self, size: int) -> bytes:
        """Up to `size` bytes from standard input, none at its end and after Ctrl-C."""
        if self.has_come:
            return b""
        self.is_waiting = True
        try:
            return os.read(sys.stdin.fileno(), size)
        except KeyboardInterrupt:
            return b""
        finally:
            self.is_waiting = False


def _pieces(options: Options, recognizer: Recognizer, interrupt: _Interrupt) -> Iterator[np.ndarray]:
    size = options.sim_chunk_length or max(1, round(options.piece_s * recognizer.rate))
    if options.audio == STDIN:
        yield from _read_pcm(size, interrupt)
        return
    samples = recognizer.read(options.audio)
    for first in range(0, len(samples), size):
        if interrupt.has_come:
            return
        yield samples[first : first + size]


def _read_pcm(size: int, interrupt: _Interrupt) -> Iterator[np.ndarray]:
    """Pieces of up to `size` samples from standard input, as soon as they are there."""
    import numpy as np

    waiting, is_first = b"", True
    while data := interrupt.read(min(2 * size, MOST_BYTES) - len(waiting) % 2):
        waiting += data
        if is_first and len(waiting) < HEADER_BYTES:
            continue
        if is_first:
            _reject_file(waiting)
            is_first = False
        whole = len(waiting) // 2 * 2
        yield np.frombuffer(waiting[:whole], dtype="<i2")
        waiting = waiting[whole:]
    if is_first and len(waiting) >= 2:
        yield np.frombuffer(waiting[:2], dtype="<i2")


def _reject_file(start: bytes) -> None:
    for header, name in HEADERS.items():
        if start.startswith(header):
            raise UserError(
                f"standard input is a {name} file, but samples without a header are expected: give the file by its "
                "name, or convert it with `sox FILE -t raw -`"
            )


class _Output:
    """On a terminal, one line that changes; JSON lines for programs; otherwise only the final text."""

    def __init__(self, *, is_json: bool) -> None:
        self.is_json = is_json
        self.is_live = not is_json and sys.stderr.isatty()
        self._text = ""

    def show(self, hypothesis: Hypothesis, audio_s: float) -> None:
        if hypothesis.text == self._text:
            return
        self._text = hypothesis.text
        if self.is_json:
            self._write_json(hypothesis, audio_s, is_final=False)
        elif self.is_live:
            width = os.get_terminal_size(sys.stderr.fileno()).columns - 1
            print("\r\x1b[K" + self._text[-width:], end="", file=sys.stderr, flush=True)

    def end(self, hypothesis: Hypothesis, audio_s: float) -> None:
        if self.is_live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        if self.is_json:
            self._write_json(hypothesis, audio_s, is_final=True)
        else:
            print(hypothesis.text, flush=True)

    def _write_json(self, hypothesis: Hypothesis, audio_s: float, *, is_final: bool) -> None:
        row = {"text": hypothesis.text, "audio_s": round(audio_s, 3), "is_final": is_final}
        print(json.dumps(row, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
