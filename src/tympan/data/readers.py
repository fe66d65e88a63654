"""Data types of `train_data_path_and_name_and_type`: read the value of a line as an array or a text."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np

from tympan.data.ark import read_matrix
from tympan.data.audio import Audio, AudioInfo, Channel, audio_info, is_pipe, locate, open_source, read_audio
from tympan.data.hdf5 import hdf5_shape, read_hdf5
from tympan.data.kaldi_dir import Segment, parse_segment
from tympan.data.matrix_header import matrix_shape
from tympan.data.seeds import rng_for
from tympan.data.table import Table
from tympan.errors import UserError
from tympan.files import explained, require_file

Value = np.ndarray | str

AUDIO_TYPES = ("sound", "multi_columns_sound", "segments")
MAX_CHANNELS = 8
"""An array with more columns than this is features, not audio."""
USUAL_RATE = 16000
"""Assumed sample rate of stored arrays, which do not contain it."""
_RANDOM_INTS = re.compile(r"rand_int_(\d+)_(\d+)")
NOT_YET = {
    "random_text": "use text, with an id in front of each line",
    **dict.fromkeys(("score", "duration", "rttm"), "it is for other tasks than speech recognition"),
}
"""ESPnet2's types that are not supported, and what to use instead."""


@dataclass(frozen=True)
class Context:
    """What a reader needs besides the line: its folder, the expected sample rate, and whether commands may be run."""

    base: Path
    sample_rate: int | None = None
    allow_pipes: bool = False
    channel: Channel | None = None
    """What to use of a file with several channels; None: all. `multi_columns_sound` always has all its columns."""
    resamples: bool = False
    """Whether `sound` and `segments` of another rate are resampled to `sample_rate`."""

    @property
    def target_rate(self) -> int | None:
        """The rate to resample to, or None to keep that of the recording."""
        return self.sample_rate if self.resamples else None


def read_value(data_type: str, value: str, context: Context, *, utterance_id: str = "") -> Value:
    """Read samples (time,) or (time, channels), features (time, dim), integers (time,), or an unchanged text.

    For types of random numbers, each utterance has its own numbers, which are the same in every call.
    """
    if data_type.startswith("rand_"):
        return _random_numbers(data_type, value, utterance_id)
    return READERS[data_type](value, context)


def require_type(data_type: str) -> str:
    if data_type in NOT_YET:
        raise UserError(f"ESPnet2's data type '{data_type}' is not supported; {NOT_YET[data_type]}")
    if data_type not in READERS and data_type != "rand_float" and not _RANDOM_INTS.fullmatch(data_type):
        known = ", ".join([*READERS, "rand_float", "rand_int_LOW_HIGH"])
        raise UserError(f"data type '{data_type}': must be one of {known}")
    return data_type


def value_length(data_type: str, value: str, context: Context) -> tuple[int, int]:
    """Return length and number of elements per step, from the header if there is one."""
    if data_type in AUDIO_TYPES:
        info = value_info(data_type, value, context)
        return info.frames, info.channels
    if data_type == "kaldi_ark":
        if _holds_audio(value, context):
            return value_length("sound", value, context)
        shape = matrix_shape(value, base=context.base)
    elif data_type == "npy":
        shape = _npy(value, context, mmap_mode="r").shape
    elif data_type == "hdf5":
        shape = hdf5_shape(value)
    elif data_type.startswith("rand_"):
        shape = _shape(value)
    else:
        shape = np.shape(read_value(data_type, value, context))
    return int(shape[0]), int(np.prod(shape[1:], dtype=np.int64))


def value_seconds(data_type: str, value: str, context: Context, *, frame_shift_s: float = 0.01) -> float:
    """Return the duration of speech, from the header if there is one. `frame_shift_s` is for stored features."""
    if data_type in AUDIO_TYPES or (data_type == "kaldi_ark" and _holds_audio(value, context)):
        info = value_info(data_type if data_type in AUDIO_TYPES else "sound", value, context)
        return info.frames / info.rate
    length, width = value_length(data_type, value, context)
    return length / USUAL_RATE if width <= MAX_CHANNELS else length * frame_shift_s


def value_info(data_type: str, value: str, context: Context) -> AudioInfo:
    """Return rate, length and channels of a value of one of `AUDIO_TYPES`, from its header."""
    if data_type == "segments":
        segment = find_segment(value, context)
        info = audio_info(segment.recording, allow_pipes=context.allow_pipes, base=context.base)
        last = info.frames if segment.end_s is None else min(round(segment.end_s * info.rate), info.frames)
        info = replace(info, frames=max(last - round(segment.start_s * info.rate), 0))
        return _as_read(info, context)
    first, *others = [value] if data_type == "sound" else value.split()
    info = audio_info(first, allow_pipes=context.allow_pipes, base=context.base)
    if data_type == "sound":
        return _as_read(info, context)
    return replace(info, channels=info.channels + len(others))


def value_sources(data_type: str, value: str, context: Context) -> list[str]:
    """Return the files (or commands) that a value is read from. Empty if the line contains the value itself."""
    if data_type == "segments":
        return [find_segment(value, context).recording]
    if data_type in ("multi_columns_sound", "variable_columns_sound"):
        return value.split()
    return [value] if data_type in ("sound", "kaldi_ark", "npy") else []


def read_recording(data_type: str, value: str, context: Context) -> Audio:
    """Read a value of the type `sound` or `segments`, with the channel that the context asks for."""
    segment = find_segment(value, context) if data_type == "segments" else Segment(value)
    return read_audio(
        segment.recording,
        rate=context.target_rate,
        channel=context.channel,
        start_s=segment.start_s,
        end_s=segment.end_s,
        allow_pipes=context.allow_pipes,
        base=context.base,
    )


def _as_read(info: AudioInfo, context: Context) -> AudioInfo:
    """Rate, length and channels after the channel was chosen and the rate changed."""
    rate = context.target_rate or info.rate
    if rate != info.rate:
        info = replace(info, rate=rate, frames=int(info.frames * rate / info.rate + 0.5))
    return info if context.channel is None else replace(info, channels=1)


def _sound(value: str, context: Context) -> np.ndarray:
    return _checked(read_recording("sound", value, context), value, context)


def _segments(value: str, context: Context) -> np.ndarray:
    return _checked(read_recording("segments", value, context), find_segment(value, context).recording, context)


def find_segment(value: str, context: Context) -> Segment:
    """Parse a line of Kaldi's `segments`. The recording is looked up in wav.scp in the same folder."""
    segment = parse_segment(value, "segments")
    scp = context.base / "wav.scp"
    recordings = _recordings(scp, scp.stat().st_mtime_ns if scp.is_file() else 0)
    line = recordings.find(segment.recording)
    if line is None:
        raise UserError(f"recording '{segment.recording}' is not in {scp}")
    return replace(segment, recording=recordings.value(line))


@lru_cache(maxsize=8)
def _recordings(scp: Path, _mtime_ns: int) -> Table:
    """Open a table once per process, and again if the file changes."""
    return Table(scp)


def _checked(audio: Audio, value: str, context: Context) -> np.ndarray:
    if context.sample_rate is not None and audio.rate != context.sample_rate:
        raise UserError(
            f"{value}: the sample rate is {audio.rate} Hz, but {context.sample_rate} Hz is expected "
            "(frontend_conf fs, or the rate of the first recording); --resample true converts it while reading"
        )
    return audio.samples


def _multi_columns_sound(value: str, context: Context) -> np.ndarray:
    """Stack several files of one channel each: (time, channels)."""
    columns = _columns(value, context)
    columns = [column[:, None] if column.ndim == 1 else column for column in columns]
    lengths = {len(column) for column in columns}
    if len(lengths) != 1:
        raise UserError(f"{value}: the files of one utterance must have equal length, found {sorted(lengths)} samples")
    return np.concatenate(columns, axis=1)


def _variable_columns_sound(value: str, context: Context) -> np.ndarray:
    """Stack any number of files: (files, time). Shorter ones are padded with NaN, as in ESPnet2."""
    columns = _columns(value, context)
    if any(column.ndim > 1 for column in columns):
        raise UserError(f"{value}: variable_columns_sound needs files with one channel")
    longest = max(len(column) for column in columns)
    return np.stack([np.pad(column, (0, longest - len(column)), constant_values=np.nan) for column in columns])


def _columns(value: str, context: Context) -> list[np.ndarray]:
    """Read the samples of several files, which must have the same sample rate."""
    files = [(name, read_audio(name, allow_pipes=context.allow_pipes, base=context.base)) for name in value.split()]
    rates = sorted({audio.rate for _, audio in files})
    if len(rates) > 1:
        raise UserError(
            f"{value}: the files of one utterance must have the same sample rate, found {', '.join(map(str, rates))} Hz"
        )
    return [_checked(audio, name, context) for name, audio in files]


def _kaldi_ark(value: str, context: Context) -> np.ndarray:
    """Read a matrix of features, or audio in an archive, which is scaled to [-1, 1) like `sound`."""
    if _holds_audio(value, context):
        return _sound(value, context)
    return np.asarray(read_matrix(value, base=context.base), dtype=np.float32)


def _holds_audio(value: str, context: Context) -> bool:
    if is_pipe(value):
        return True
    with open_source(locate(value, context.base)) as stream:
        return stream.read(4) in (b"RIFF", b"fLaC", b"AUDI", b"OggS", b"NIST")


def _npy(value: str, context: Context, *, mmap_mode: Literal["r"] | None = None) -> np.ndarray:
    location = locate(value, context.base)
    require_file(location)
    with explained(value, "a file with one array of numbers, as written by numpy.save"):
        # Mapped, because numpy would take the memory that a damaged header asks for before it reads.
        array = np.load(location, mmap_mode="r", allow_pickle=False)
        if mmap_mode is None:
            array = np.array(array)
    if not isinstance(array, np.ndarray) or array.ndim == 0 or array.dtype.kind not in "fiu":
        raise UserError(f"{value}: expected an array of shape (time,) or (time, dim)")
    return array


def _hdf5(value: str, _context: Context) -> np.ndarray:
    return read_hdf5(value)


def _text(value: str, _context: Context) -> str:
    return value


def _text_int(value: str, _context: Context) -> np.ndarray:
    return _numbers(value, None, np.int64)


def _csv_int(value: str, _context: Context) -> np.ndarray:
    return _numbers(value, ",", np.int64)


def _text_float(value: str, _context: Context) -> np.ndarray:
    return _numbers(value, None, np.float32)


def _csv_float(value: str, _context: Context) -> np.ndarray:
    return _numbers(value, ",", np.float32)


def _numbers(value: str, separator: str | None, dtype: type) -> np.ndarray:
    try:
        return np.array(value.split(separator), dtype=dtype)
    except ValueError:
        kind = "integers" if dtype is np.int64 else "numbers"
        raise UserError(
            f"expected {kind} separated by {'commas' if separator else 'spaces'}, found '{value}'"
        ) from None


def _random_numbers(data_type: str, value: str, utterance_id: str) -> np.ndarray:
    """Return random floats or integers of the shape in the line, such as 120,80."""
    shape, rng = _shape(value), rng_for(data_type, utterance_id)
    bounds = _RANDOM_INTS.fullmatch(data_type)
    if bounds is None:
        return rng.standard_normal(shape, dtype=np.float32)
    low, high = int(bounds[1]), int(bounds[2])
    if low >= high:
        raise UserError(f"data type '{data_type}': rand_int_LOW_HIGH needs LOW below HIGH, such as rand_int_0_10")
    return rng.integers(low, high, shape)


def _shape(value: str) -> tuple[int, ...]:
    """Parse `120,80`, as in a shape file."""
    sizes = _numbers(value, ",", np.int64)
    if not len(sizes) or (sizes < 0).any():
        raise UserError(f"expected a shape such as 120,80, found '{value}'")
    return tuple(int(size) for size in sizes)


READERS: dict[str, Callable[[str, Context], Value]] = {
    "sound": _sound,
    "multi_columns_sound": _multi_columns_sound,
    "variable_columns_sound": _variable_columns_sound,
    "segments": _segments,
    "kaldi_ark": _kaldi_ark,
    "npy": _npy,
    "hdf5": _hdf5,
    "text": _text,
    "text_int": _text_int,
    "csv_int": _csv_int,
    "text_float": _text_float,
    "csv_float": _csv_float,
}
