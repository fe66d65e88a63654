"""Read one recording: wav, flac, mp3, ogg, NIST sphere, `file.ark:offset`, and `cmd |` when that is allowed."""

from __future__ import annotations

import io
import math
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Literal

import numpy as np
import soundfile
import soxr

from tympan.data.audio_header import ark_entry, check_whole
from tympan.errors import UserError
from tympan.files import explained, open_file

Source = str | os.PathLike[str]
Channel = int | Literal["mean"]
"""The index of a channel, or the mean of all channels."""

BLOCK_FRAMES = 1 << 18
DIFFERENT = 0.01

MOST_FRAMES_PER_BYTE = 8192
"""A header with more samples than this for each byte of the file is wrong: FLAC stores silence with about 4,700."""
RATES_HZ = (100, 1_000_000)
_UNKNOWN_FRAMES = (1 << 63) - 1
"""libsndfile's number of samples for a FLAC file whose header has none."""
_TRUSTED_SAMPLES = 1 << 26
"""Memory for so many samples (256 MB) is taken at once; beyond that it grows with what could be decoded."""

_ARK_ENTRY = re.compile(r"^(.+):(\d{1,18})$", re.DOTALL)

Problem = Literal["missing", "unreadable", "truncated", "not-finite"]


class AudioError(UserError):
    """A recording that is missing, unreadable, truncated, or contains NaN or infinity."""

    def __init__(self, message: str, problem: Problem = "unreadable") -> None:
        super().__init__(message)
        self.problem: Problem = problem

    def __reduce__(self) -> tuple[type[AudioError], tuple[str, Problem]]:
        return AudioError, (str(self), self.problem)


@dataclass(frozen=True)
class Audio:
    """Samples in [-1, 1), float32: (time,) for one channel, (time, channels) for several."""

    samples: np.ndarray
    rate: int
    channels_differ: bool = False
    """Whether the samples are the mean of channels with different content."""

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
    channel: Channel | None = None,
    start_s: float = 0.0,
    end_s: float | None = None,
    allow_pipes: bool = False,
    allow_nan: bool = False,
    base: Source | None = None,
) -> Audio:
    """Decode `source`, or its part from `start_s` to `end_s`. Resample it to `rate` if one is given.

    `channel` is the index of a channel, `mean` for the mean of all channels, or None to keep them all. Audio with one
    channel is returned as it is.
    A relative path is looked up in the current directory, then in `base` (the data directory). Audio with NaN or
    infinity is an AudioError unless `allow_nan`.
    """
    location = locate(source, base)
    with _opened(source, location, allow_pipes=allow_pipes) as file:
        first = round(start_s * file.samplerate)
        last = file.frames if end_s is None else min(round(end_s * file.samplerate), file.frames)
        if first >= file.frames and file.frames:
            raise AudioError(f"{location}: the segment starts at {start_s:g} s, but the recording ends at {_end(file)}")
        own_rate = int(file.samplerate)
        if channel is not None:
            blocks = _blocks(file, location, first, last, allow_nan=allow_nan)
            return _decode_channel(file, blocks, location, last - first, channel=channel, rate=rate or own_rate)
        samples = _decode(file, _blocks(file, location, first, last, allow_nan=allow_nan))
    if rate is not None and rate != own_rate:
        return Audio(resample(samples, own_rate, rate), rate)
    return Audio(samples, own_rate)


def audio_info(source: Source, *, allow_pipes: bool = False, base: Source | None = None) -> AudioInfo:
    """Return rate, length and channels from the header."""
    with _opened(source, locate(source, base), allow_pipes=allow_pipes) as file:
        return AudioInfo(rate=file.samplerate, frames=file.frames, channels=file.channels)


def check_audio(source: Source, *, allow_pipes: bool = False, base: Source | None = None) -> AudioInfo:
    """Like `audio_info`, but raise AudioError for a recording that is truncated or contains NaN or infinity.

    Compressed and floating-point formats are decoded completely, block by block.
    """
    location = locate(source, base)
    with _opened(source, location, allow_pipes=allow_pipes) as file:
        info = AudioInfo(rate=file.samplerate, frames=file.frames, channels=file.channels)
        if file.format in ("FLAC", "OGG", "MP3") or file.subtype in ("FLOAT", "DOUBLE"):
            for _ in _blocks(file, location, 0, file.frames):
                pass
    return info


def resample(samples: np.ndarray, from_rate: float, to_rate: float) -> np.ndarray:
    """Resample along time with a band-limited filter (soxr, high quality)."""
    if len(samples) == 0:
        return samples
    return np.asarray(soxr.resample(samples, from_rate, to_rate, quality="HQ"), dtype=np.float32)


def require_channel(channel: int, channels: int, location: str) -> None:
    """UserError for a channel that a recording with several channels does not have."""
    if channels > 1 and not 0 <= channel < channels:
        raise UserError(
            f"{location}: there is no channel {channel}; the number of channels is {channels}, and the first "
            f"channel is 0"
        )


class Mixer:
    """Turns blocks (time, channels) into one channel, and finds out whether averaged channels differ."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._energy = self._difference = 0.0

    def __call__(self, block: np.ndarray) -> np.ndarray:
        """(time,) of a block (time,) or (time, channels)."""
        if block.ndim == 1:
            return block
        if self.channel != "mean":
            return np.ascontiguousarray(block[:, self.channel])
        mean: np.ndarray = block.mean(axis=1, dtype=np.float32)
        self._energy += float(np.square(block).sum(dtype=np.float64))
        self._difference += float(np.square(block - mean[:, None]).sum(dtype=np.float64))
        return mean

    @property
    def channels_differ(self) -> bool:
        """Whether what the mean cancels has more than DIFFERENT of the energy of the channels."""
        return self._difference > DIFFERENT * self._energy


def is_pipe(source: Source) -> bool:
    return isinstance(source, str) and source.rstrip().endswith("|")


def locate(source: Source, base: Source | None) -> str:
    """Return the source as it can be opened: relative to `base` if it exists only there, else unchanged.

    A string is a table entry, and spaces around it are removed. A Path is always the name of a file.
    """
    text = source.strip() if isinstance(source, str) else os.fspath(source)
    if base is None or is_pipe(source) or os.path.isabs(text):
        return text
    path, _ = split_ark(text)
    beside = os.path.join(os.fspath(base), text)
    if not os.path.exists(path) and os.path.exists(split_ark(beside)[0]):
        return beside
    return text


def split_ark(source: str) -> tuple[str, int | None]:
    """Split `file.ark:123` into ("file.ark", 123). Any other source gives (source, None)."""
    match = _ARK_ENTRY.match(source)
    if match is None or os.path.exists(source):
        return source, None
    return match[1], int(match[2])


def open_source(location: str) -> BinaryIO:
    """The file of `file.ark:123` or `file`, at its offset. UserError if it is no regular file, or ends before."""
    path, offset = split_ark(location)
    stream = open_file(path)
    if offset is not None and offset >= os.fstat(stream.fileno()).st_size:
        stream.close()
        raise UserError(f"{location}: the archive ends before this offset")
    stream.seek(offset or 0)
    return stream


def _opened(source: Source, location: str, *, allow_pipes: bool) -> soundfile.SoundFile:
    if is_pipe(source):
        return _opened_pipe(location, allow_pipes=allow_pipes)
    path, offset = split_ark(location)
    if not os.path.exists(path):
        raise AudioError(f"{location}: there is no such file", "missing")
    try:
        with open_source(location) as stream:
            if offset is not None:
                with explained(location, "audio"):
                    content = ark_entry(stream)
                return _opened_bytes(content, location)
            size = os.fstat(stream.fileno()).st_size
            _require_whole(stream, size, location)
    except AudioError:
        raise
    except UserError as error:
        raise AudioError(str(error)) from None
    return _opened_sound(path, size, location)


def _opened_pipe(command: str, *, allow_pipes: bool) -> soundfile.SoundFile:
    if not allow_pipes:
        raise UserError(
            f"'{command}' would run a program to get the audio. "
            "Pass --allow_pipes true if you trust this data directory, or write the audio to files first."
        )
    result = subprocess.run(command.rstrip()[:-1], shell=True, capture_output=True, check=False)
    if result.returncode != 0:
        tail = result.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise AudioError(f"'{command}' exited with code {result.returncode}: {' '.join(tail) or 'no message'}")
    return _opened_bytes(result.stdout, f"'{command}'")


def _opened_bytes(content: bytes, location: str) -> soundfile.SoundFile:
    _require_whole(io.BytesIO(content), len(content), location)
    return _opened_sound(io.BytesIO(content), len(content), location)


def _opened_sound(file: str | io.BytesIO, size: int, location: str) -> soundfile.SoundFile:
    """Opened by libsndfile, with a header that a file of this size can have."""
    try:
        sound = soundfile.SoundFile(file)
    except Exception as error:  # of a library that parses damaged bytes
        raise AudioError(f"{location}: {_reason(error)}") from None
    lowest, highest = RATES_HZ
    problem = None
    if not lowest <= sound.samplerate <= highest:
        problem = f"a sample rate of {sound.samplerate} Hz; {lowest} to {highest} Hz is expected"
    elif not 0 <= sound.frames <= MOST_FRAMES_PER_BYTE * size:
        problem = f"{sound.frames} samples, which a file of {size} bytes cannot contain"
    if problem is not None:
        is_unknown = sound.frames == _UNKNOWN_FRAMES
        sound.close()
        if is_unknown:
            raise AudioError(
                f"{location}: the header does not say how long the recording is, as when FLAC is written to a pipe; "
                "convert it, for example with `ffmpeg -i IN OUT.wav`"
            )
        raise AudioError(f"{location}: damaged: the header says {problem}")
    return sound


def _require_whole(stream: BinaryIO, size: int, location: str) -> None:
    try:
        problem = check_whole(stream, size)
    except Exception as error:  # damaged bytes where a header has numbers
        problem = f"the header is damaged ({error})"
    if problem is not None:
        raise AudioError(f"{location}: {problem}", "truncated" if "truncated" in problem else "unreadable")


def _blocks(
    file: soundfile.SoundFile, location: str, first: int, last: int, *, allow_nan: bool = False
) -> Iterator[np.ndarray]:
    """Samples `first` to `last`, block by block: a header that promises too much costs no memory."""
    done = first
    if first:
        _seek(file, location, first)
    while done < last:
        block = _next(file, location, min(BLOCK_FRAMES, last - done))
        if len(block) == 0:
            raise AudioError(
                f"{location}: truncated: {done} samples could be decoded, but the header says {file.frames}",
                "truncated",
            )
        if not allow_nan and not np.isfinite(block).all():
            raise AudioError(f"{location}: contains NaN or infinity", "not-finite")
        done += len(block)
        yield block


def _decode(file: soundfile.SoundFile, blocks: Iterator[np.ndarray]) -> np.ndarray:
    parts = list(blocks)
    if not parts:
        return np.zeros((0, file.channels) if file.channels > 1 else 0, dtype=np.float32)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _decode_channel(
    file: soundfile.SoundFile,
    blocks: Iterator[np.ndarray],
    location: str,
    frames: int,
    *,
    channel: Channel,
    rate: int,
) -> Audio:
    """Read one channel in blocks, so that memory holds only the resampled channel, not the whole recording."""
    if channel != "mean":
        require_channel(channel, file.channels, location)
    mixer = Mixer(channel)
    own_rate = int(file.samplerate)
    stream = None if rate == own_rate else soxr.ResampleStream(own_rate, rate, 1, dtype="float32", quality="HQ")
    # The resampler rounds the length. Memory that is never written to is not really allocated.
    promised = math.ceil(max(frames, 0) * rate / own_rate) + 1
    samples = np.empty(min(promised, _TRUSTED_SAMPLES), dtype=np.float32)
    done = filled = 0
    for block in blocks:
        done += len(block)
        part = mixer(block)
        if stream is not None:
            part = stream.resample_chunk(part, last=done >= frames)
        if filled + len(part) > len(samples):
            samples = np.concatenate([samples[:filled], np.empty(len(samples) + len(part), dtype=np.float32)])
        samples[filled : filled + len(part)] = part
        filled += len(part)
    return Audio(samples[:filled], rate, mixer.channels_differ)


def _next(file: soundfile.SoundFile, location: str, frames: int) -> np.ndarray:
    try:
        return np.asarray(file.read(frames, dtype="float32"))
    except Exception as error:  # of a library that decodes damaged bytes
        raise AudioError(f"{location}: {_reason(error)}") from None


def _seek(file: soundfile.SoundFile, location: str, frame: int) -> None:
    try:
        file.seek(frame)
    except Exception as error:  # of a library that decodes damaged bytes
        raise AudioError(f"{location}: {_reason(error)}") from None


def _end(file: soundfile.SoundFile) -> str:
    return f"{file.frames / file.samplerate:.3f} s"


def _reason(error: Exception) -> str:
    if isinstance(error, soundfile.LibsndfileError):
        if error.error_string.startswith("Format not recognised"):  # such as m4a
            return (
                "cannot be decoded as audio (format not recognised; if it is a recording, convert it, for example with "
                "`ffmpeg -i IN OUT.wav`)"
            )
        return f"cannot be decoded as audio ({error.error_string.strip() or 'truncated or damaged'})"
    return str(error)
