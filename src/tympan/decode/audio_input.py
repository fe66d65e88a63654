"""What Python hands to the recogniser: a path, or samples with their rate. What is neither is told, not guessed."""

from __future__ import annotations

import math
import numbers
import os
from typing import Any

import numpy as np

from tympan.data.audio import Audio
from tympan.errors import UserError

AudioInput = str | os.PathLike[str] | np.ndarray | tuple[np.ndarray, int]

PCM_SCALES = {"int16": 2.0**15, "int32": 2.0**31}

MAX_CHANNELS = 8
"""An array with more columns than this holds features, not audio."""

MAX_LEVEL = 2.0
"""Floats are in [-1, 1]; some tools overshoot a little. What is beyond this was never scaled."""


def samples_of(audio: Any, rate: Any = None) -> Audio:
    """Samples (with `rate`) or (samples, rate), as float32 in [-1, 1]; of several channels the first."""
    if isinstance(audio, tuple):
        audio, rate = _pair(audio)
    if not hasattr(audio, "__array__"):
        raise UserError(
            "a recording is a path, an array of samples with rate=16000, or (samples, 16000); "
            f"found {_described(audio)}"
        )
    samples, rate = _array(audio), _rate(rate)
    if samples.ndim not in (1, 2) or (samples.ndim == 2 and not 0 < samples.shape[1] <= samples.shape[0]):
        raise UserError(f"samples are an array (time,) or (time, channels), not one of shape {samples.shape}")
    samples = _as_float(samples[:, 0] if samples.ndim == 2 else samples)
    check_samples(samples, remedy="divide 16-bit PCM by 32768, or give it as numpy.int16")
    return Audio(samples, rate)


def check_samples(samples: np.ndarray, *, remedy: str) -> None:
    """UserError for what no microphone gave: a model would make up a text for it."""
    if not np.isfinite(samples).all():
        raise UserError("the samples hold values that are not finite numbers (nan or inf)")
    level = float(np.abs(samples).max(initial=0.0))
    if level > MAX_LEVEL:
        raise UserError(f"samples as floats are in [-1, 1], found {level:g}: {remedy}")


def _pair(audio: tuple[Any, ...]) -> tuple[Any, Any]:
    if any(isinstance(item, str | os.PathLike) for item in audio):
        raise UserError("several recordings are a list, not a tuple: recognizer(['a.wav', 'b.flac'])")
    if len(audio) != 2:
        raise UserError(f"a tuple is (samples, rate), found one of {len(audio)} values")
    if isinstance(audio[0], numbers.Real) and hasattr(audio[1], "__array__"):
        raise UserError("a tuple is (samples, rate), found (rate, samples), as scipy.io.wavfile.read gives it: turn it")
    return audio[0], audio[1]


def _rate(rate: Any) -> int:
    if rate is None:
        raise UserError("samples need their rate: recognizer(samples, rate=16000)")
    is_number = isinstance(rate, numbers.Real) and not isinstance(rate, bool)
    if not is_number or not math.isfinite(rate) or rate < 1 or rate != int(rate):
        raise UserError(
            f"samples need their rate, a whole number of samples a second such as rate=16000; found {_described(rate)}"
        )
    return int(rate)


def _array(audio: Any) -> np.ndarray:
    try:
        return np.asarray(audio)
    except (TypeError, ValueError, RuntimeError) as error:  # such as a tensor on an accelerator
        raise UserError(f"the samples can't be taken as a NumPy array: {error}") from None


def _as_float(samples: np.ndarray) -> np.ndarray:
    """Whole numbers are taken for PCM of their width; bytes have their zero at 128, as in wav files."""
    kind = samples.dtype.name
    if kind in PCM_SCALES:
        return (samples / PCM_SCALES[kind]).astype(np.float32)
    if kind == "uint8":
        return (samples / 128.0 - 1.0).astype(np.float32)
    if samples.dtype.kind in "iu":
        raise UserError(
            f"samples of {kind} do not say how loud the loudest is: give 16-bit PCM as samples.astype(numpy.int16), "
            "or floats in [-1, 1] (int32 and uint8 are taken as PCM, too)"
        )
    if samples.dtype.kind != "f":
        raise UserError(f"samples are real or whole numbers, found an array of {samples.dtype}")
    return samples.astype(np.float32)


def _described(value: object) -> str:
    """The type, and the value where that is short."""
    text = repr(value)
    return f"{type(value).__name__} {text}" if len(text) <= 40 and value is not None else type(value).__name__
