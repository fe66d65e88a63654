"""Transcribe recordings with a trained model, as text, JSON, subtitles or word times."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from tympan.config import argument, option, parse_args
from tympan.decode.options import (
    AdapterOptions,
    BatchLimits,
    DecodeDeviceOptions,
    DecodeOptions,
    ImportOptions,
    PrecisionOptions,
    part_of,
)
from tympan.decode.settings import RULES, given_options
from tympan.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from tympan.data.recordings import Recording
    from tympan.decode.hypothesis import Hypothesis
    from tympan.decode.journal import Result
    from tympan.decode.recognizer import Recognizer
    from tympan.decode.session import Speech

SUFFIXES = {"text": ".txt", "json": ".json", "srt": ".srt", "vtt": ".vtt", "ctm": ".ctm"}


MODEL_HELP = "folder made by `tympan pack`, experiment directory, published model, or OWNER/NAME on a model hub"


@dataclass(frozen=True, kw_only=True)
class ModelOptions(DecodeOptions, DecodeDeviceOptions, PrecisionOptions, AdapterOptions, ImportOptions):
    """Search options that are not given come from the model's decode.yaml, if it has one."""

    model: str = argument(help=MODEL_HELP)


@dataclass(frozen=True, kw_only=True)
class Options(ModelOptions, BatchLimits):
    files: list[Path] = argument(
        help="audio files (wav, flac, mp3, ogg, ... at any sample rate), directories, quoted patterns such as "
        "'talks/**/*.wav', or - for standard input"
    )
    text: bool = option(False, help="write plain text; the default if no other format is chosen")
    json: bool = option(
        False, help="write one JSON object per line and recording, with text, words, tokens, times and confidences"
    )
    srt: bool = option(False, help="write subtitles in SRT format")
    vtt: bool = option(False, help="write subtitles in WebVTT format")
    ctm: bool = option(False, help="write words with times in NIST's CTM format")
    output_dir: Path | None = option(
        None,
        help="output directory for NAME.txt, NAME.json, ...; recordings of a directory keep their subdirectories "
        "(default: print to the terminal)",
    )


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = parse_args(Options, arguments, prog="tympan transcribe", description=__doc__, rules=RULES)

    from tympan.data.recordings import find_recordings

    recordings = find_recordings(options.files)
    formats = [name for name in SUFFIXES if getattr(options, name)] or ["text"]
    _check_output(formats, recordings, options.output_dir)
    recognizer = load_recognizer(options, given_options(Options, arguments), limits=part_of(options, BatchLimits))
    if captions := [f"--{name}" for name in formats if name in ("srt", "vtt")]:
        recognizer.require_one_speaker(f"{' and '.join(captions)} can't show them; use --text, --json or --ctm")
    with _Output(formats, recordings, options) as output:
        for recording, result in _transcribed(recognizer, recordings):
            output.add(recording, result)
    return 1 if output.failures else 0


def _check_output(formats: Sequence[str], recordings: Sequence[Recording], output_dir: Path | None) -> None:
    if output_dir is not None:
        _check_names(recordings)
        return
    if len(formats) > 1:
        raise UserError(
            f"--{' and --'.join(formats)} together need --output_dir: only one format can be printed to the terminal"
        )
    if formats[0] in ("srt", "vtt") and len(recordings) > 1:
        raise UserError(
            f"--{formats[0]} for several recordings needs --output_dir: each recording gets its own subtitle file"
        )


def _check_names(recordings: Sequence[Recording]) -> None:
    """a/1.wav and b/1.wav would both be written to 1.txt."""
    first: dict[str, Recording] = {}
    for recording in recordings:
        other = first.setdefault(recording.name, recording)
        if other is not recording:
            raise UserError(
                f"--output_dir: {other.path} and {recording.path} would both be written to {recording.name}.*; name "
                "the directory that contains both, which keeps subdirectories, or transcribe them separately"
            )


class _Output:
    """Prints or writes each result as it comes, below a progress bar for several recordings."""

    def __init__(self, formats: Sequence[str], recordings: Sequence[Recording], options: Options) -> None:
        from tqdm import tqdm

        self.failures = 0
        self._formats = formats
        self._directory = options.output_dir
        self._nbest = options.nbest
        self._is_one = len(recordings) == 1
        self._ctm_names = _ctm_names([recording.path for recording in recordings])
        # None: only on a terminal.
        self._bar = tqdm(total=len(recordings), unit="file", disable=True if self._is_one else None, file=sys.stderr)

    def __enter__(self) -> _Output:
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.close()

    def add(self, recording: Recording, result: Result) -> None:
        from tympan.decode.hypothesis import by_speaker

        if result.error is not None:
            prefix = "" if result.error.startswith(f"{recording.path}:") else f"{recording.path}: "
            self._show(f"tympan: not transcribed: {prefix}{result.error}\n", sys.stderr)
            self.failures += 1
        else:
            for name in self._formats:
                lists = [ranked[: self._nbest] for ranked in by_speaker(result.hypotheses)]
                self._write(name, recording, lists)
        self._bar.update()

    def _write(self, name: str, recording: Recording, lists: Sequence[Sequence[Hypothesis]]) -> None:
        """`lists`: an n-best list for each speaker."""
        ctm_name = self._ctm_names[recording.path]
        text = "".join(_formatted(name, recording, ranked, ctm_name=ctm_name) for ranked in lists)
        if self._directory is not None:
            _write(self._directory / f"{recording.name}{SUFFIXES[name]}", text)
        elif name == "text" and not self._is_one:
            self._show("".join(f"{recording.path}\t{line}\n" for line in text.splitlines()), sys.stdout)
        else:
            self._show(text, sys.stdout)

    def _show(self, text: str, stream: TextIO) -> None:
        self._bar.clear()
        print(text, end="", file=stream, flush=True)


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


def load_recognizer(options: ModelOptions, given: set[str], *, limits: BatchLimits | None = None) -> Recognizer:
    """The recognizer of a command's options. `given` are the names of those that the user gave."""
    from tympan.decode.recognizer import Recognizer
    from tympan.runtime.device import choose_kind

    search = {name: value for name, value in vars(part_of(options, DecodeOptions)).items() if name in given}
    return Recognizer.from_pretrained(
        options.model,
        device=choose_kind(ngpu=options.ngpu, device=options.device),
        dtype=options.dtype,
        allow_import=options.allow_import,
        adapter=options.adapter,
        limits=limits,
        **search,
    )


def _transcribed(recognizer: Recognizer, recordings: Sequence[Recording]) -> Iterator[tuple[Recording, Result]]:
    """Results in the order given. As many recordings are read at a time as may be decoded together."""
    from tympan.decode.session import decode_together

    limits = recognizer.limits
    waiting: list[tuple[Recording, Speech]] = []
    seconds = 0.0
    for index, recording in enumerate(recordings):
        try:
            samples = _read_stdin(recognizer) if recording.is_stdin else recognizer.read(recording.path)
            recognizer.check_length(samples)
        except UserError as error:
            waiting.append((recording, error))
        else:
            waiting.append((recording, samples))
            seconds += recognizer.duration_s(samples)
        is_last = index + 1 == len(recordings)
        if is_last or len(waiting) >= max(limits.batch_size, 1) or seconds >= limits.max_batch_s:
            results = decode_together(recognizer, [(str(item.path), speech) for item, speech in waiting])
            yield from zip([item for item, _ in waiting], results, strict=True)
            waiting, seconds = [], 0.0


def _read_stdin(recognizer: Recognizer) -> np.ndarray:
    """Write standard input to a file first, because some audio formats must be read from their end."""
    with tempfile.NamedTemporaryFile(prefix="tympan-stdin-") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
        file.flush()
        if not file.tell():
            raise UserError("standard input is empty: pipe a whole audio file into it, such as `cat a.wav | ...`")
        try:
            return recognizer.read(Path(file.name))
        except UserError as error:
            raise UserError(str(error).replace(file.name, "standard input")) from None


def _formatted(name: str, recording: Recording, hypotheses: Sequence[Hypothesis], *, ctm_name: str) -> str:
    from tympan.decode.output import ctm, srt, vtt

    best = hypotheses[0]
    if name == "json":
        return json.dumps({"file": str(recording.path), **_entry(hypotheses)}, ensure_ascii=False) + "\n"
    if name == "text":
        return "".join(f"{hypothesis.text}\n" for hypothesis in hypotheses)
    words = best.word_times
    if not words and best.text:
        raise UserError(f"--{name} needs word times, which this model cannot give: it was trained without CTC")
    if name == "ctm":
        return ctm(ctm_name, words, channel=str(best.speaker or 1))
    return {"srt": srt, "vtt": vtt}[name](words)


def _entry(hypotheses: Sequence[Hypothesis]) -> dict[str, object]:
    """The best hypothesis, its words with their times (null without times), and the others with their scores."""
    best = hypotheses[0]
    words = None if best.times is None else [word.to_dict() for word in best.word_times]
    entry: dict[str, object] = {**best.as_dict(), "words": words}
    if len(hypotheses) > 1:
        entry["nbest"] = [
            {"text": item.text, "score": item.score, "scores": item.scores, "tokens": item.tokens}
            for item in hypotheses
        ]
    return entry


def _write(path: Path, text: str) -> None:
    from tympan.runtime.atomic import atomic_write

    with atomic_write(path) as stream:
        stream.write(text)


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
