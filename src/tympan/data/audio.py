"""Read one recording: wav, flac, mp3, ogg, NIST sphere, `file.ark:offset`, and `cmd |` when that is allowed."""

from __future__ import annotations

import io
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import soundfile
import soxr

from tympan.data.audio_header import ark_entry, check_whole
from tympan.errors import UserError

Source = str | os.PathLike[str]

_ARK_ENTRY = re.compile(r"^(.+):(\d+)$")


class AudioError(UserError):
    """A recording that is missing, unreadable or cut off."""


@dataclass(frozen=True)
class Audio:
    """Samples in [-1, 1), float32: (time,) for one channel, (time, channels) for several."""

    samples: np.ndarray
    rate: int

    @property
    def duration_s(self) -> float:
        return len(self.samples) / self.rate


@dataclass(frozen=True)
class AudioInfo:
    rate: int
    frames: int
    channels: int

    @property
    def duration_s(self) -> float:
        return self.frames / self.rate


def read_audio(
    source: Source,
    *,
    rate: int | None = None,
    channel: int | None = None,
    start_s: float = 0.0,
    end_s: float | None = None,
    allow_pipes: bool = False,
    base: Source | None = None,
) -> Audio:
    """Decode `source`, or its part from `start_s` to `end_s`; resample it to `rate` if one is given.

    A relative path is looked for from the current directory, then from `base` (the data directory).
    """
    location = locate(source, base)
    with _opened(location, allow_pipes=allow_pipes) as file:
        first = round(start_s * file.samplerate)
        last = file.frames if end_s is None else min(round(end_s * file.samplerate), file.frames)
        if first >= file.frames and file.frames:
            raise AudioError(f"{location}: a part from {start_s:g} s was asked for, the recording ends at {_end(file)}")
        samples = _decode(file, location, first, last)
        own_rate = int(file.samplerate)
    samples = _pick_channel(samples, channel, location)
    if rate is not None and rate != own_rate:
        return Audio(resample(samples, own_rate, rate), rate)
    return Audio(samples, own_rate)


def audio_info(source: Source, *, allow_pipes: bool = False, base: Source | None = None) -> AudioInfo:
    """Rate, length and channels from the header."""
    with _opened(locate(source, base), allow_pipes=allow_pipes) as file:
        return AudioInfo(rate=file.samplerate, frames=file.frames, channels=file.channels)


def check_audio(source: Source, *, allow_pipes: bool = False, base: Source | None = None) -> AudioInfo:
    """As `audio_info`, and raises for a recording that ends early: compressed formats are decoded to their end."""
    location = locate(source, base)
    with _opened(location, allow_pipes=allow_pipes) as file:
        info = AudioInfo(rate=file.samplerate, frames=file.frames, channels=file.channels)
        if file.format in ("FLAC", "OGG", "MP3"):
            _decode(file, location, 0, file.frames)
    return info


def resample(samples: np.ndarray, from_rate: float, to_rate: float) -> np.ndarray:
    """Band-limited resampling along time (soxr, high quality)."""
    if len(samples) == 0:
        return samples
    return np.asarray(soxr.resample(samples, from_rate, to_rate, quality="HQ"), dtype=np.float32)


def is_pipe(source: Source) -> bool:
    return isinstance(source, str) and source.rstrip().endswith("|")


def locate(source: Source, base: Source | None) -> str:
    """The source as it can be opened: as given if that exists, else below `base` if that exists, else as given."""
    text = os.fspath(source).strip()
    if base is None or is_pipe(text) or os.path.isabs(text):
        return text
    path, _ = split_ark(text)
    beside = os.path.join(os.fspath(base), text)
    if not os.path.exists(path) and os.path.exists(split_ark(beside)[0]):
        return beside
    return text


def split_ark(source: str) -> tuple[str, int | None]:
    """`file.ark:123` as ("file.ark", 123); any other source as (source, None)."""
    match = _ARK_ENTRY.match(source)
    if match is None or os.path.exists(source):
        return source, None
    return match[1], int(match[2])


def _opened(location: str, *, allow_pipes: bool) -> Any:
    if is_pipe(location):
        return _opened_pipe(location, allow_pipes=allow_pipes)
    path, offset = split_ark(location)
    try:
        if offset is None:
            with open(path, "rb") as stream:
                _require_whole(stream, Path(path).stat().st_size, location)
            return soundfile.SoundFile(path)
        with open(path, "rb") as stream:
            stream.seek(offset)
            return _opened_bytes(ark_entry(stream), location)
    except (OSError, ValueError, soundfile.LibsndfileError) as error:
        raise AudioError(f"{location}: {_reason(error)}") from None


def _opened_pipe(command: str, *, allow_pipes: bool) -> Any:
    if not allow_pipes:
        raise UserError(
            f"'{command}' would run a program to get the audio. "
            "Pass --allow_pipes true if you trust this data directory, or write the audio to files first."
        )
    result = subprocess.run(command.rstrip()[:-1], shell=True, capture_output=True, check=False)
    if result.returncode != 0:
        tail = result.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise AudioError(f"'{command}' ended with code {result.returncode}: {' '.join(tail) or 'no message'}")
    try:
        return _opened_bytes(result.stdout, command)
    except (ValueError, soundfile.LibsndfileError) as error:
        raise AudioError(f"'{command}': {_reason(error)}") from None


def _opened_bytes(content: bytes, location: str) -> Any:
    _require_whole(io.BytesIO(content), len(content), location)
    return soundfile.SoundFile(io.BytesIO(content))


def _require_whole(stream: BinaryIO, size: int, location: str) -> None:
    problem = check_whole(stream, size)
    if problem is not None:
        raise AudioError(f"{location}: {problem}")


def _decode(file: Any, location: str, first: int, last: int) -> np.ndarray:
    try:
        if first:
            file.seek(first)
        samples = file.read(max(last - first, 0), dtype="float32")
    except soundfile.LibsndfileError as error:
        raise AudioError(f"{location}: {_reason(error)}") from None
    if len(samples) < last - first:
        raise AudioError(
            f"{location}: truncated: {first + len(samples)} samples can be decoded, the header promises {file.frames}"
        )
    return np.asarray(samples)


def _pick_channel(samples: np.ndarray, channel: int | None, location: str) -> np.ndarray:
    channels = 1 if samples.ndim == 1 else samples.shape[1]
    if channel is None:
        return samples
    if not 0 <= channel < channels:
        raise UserError(f"{location}: channel {channel} was asked for, there are {channels} (counted from 0)")
    return samples if samples.ndim == 1 else np.ascontiguousarray(samples[:, channel])


def _end(file: Any) -> str:
    return f"{file.frames / file.samplerate:.3f} s"


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, soundfile.LibsndfileError):
        return f"can't be decoded as audio ({error.error_string.strip() or 'truncated or damaged'})"
    return str(error)
