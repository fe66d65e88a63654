"""From a recording to what the model takes: samples that Python or a file gives, and features where it expects them.

A model with a frontend takes samples. Others were trained on stored features: `features.yaml` beside their
configuration says how those were made.
"""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
import yaml

from tympan.config.model import SpeechTrainConfig
from tympan.data.audio import Audio
from tympan.decode.model_files import FEATURES_FILE
from tympan.errors import UserError
from tympan.features.cmvn import read_stats
from tympan.features.extractor import compute_features, load_options
from tympan.features.frontend import parse_rate
from tympan.models.speech_model import SpeechModel

AudioInput = str | os.PathLike[str] | np.ndarray | tuple[np.ndarray, int]

PCM_SCALES = {"int16": 2.0**15, "int32": 2.0**31}

MAX_LEVEL = 2.0
"""Floats are in [-1, 1]; some tools overshoot a little. What is beyond this was never scaled."""


@dataclass(frozen=True)
class SpeechInput:
    """The model's sample rate, the seconds between two encoder frames, and how stored features are made."""

    rate: int
    frame_shift_s: float
    recipe: FeatureRecipe | None = None
    wants_features: bool = False
    feature_shift_s: float = 0.01
    """Between two frames of stored features."""

    def prepare(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Samples (time,) become what the model takes; features (frames, size) are taken as they are."""
        if not self.wants_features:
            return list(inputs)
        return [item if item.ndim == 2 else self._features(item) for item in inputs]

    def _features(self, samples: np.ndarray) -> np.ndarray:
        if self.recipe is None:
            raise UserError(
                f"this model was trained on stored features: to hear audio it needs {FEATURES_FILE} beside its "
                "config.yaml, which says how they were made"
            )
        return self.recipe(samples)


class FeatureRecipe:
    """The features of `features.yaml`, with the global statistics of the training data beside it."""

    def __init__(self, path: Path) -> None:
        options = load_options(path)
        # A transcription must not depend on chance: no dither, whatever was used in training.
        self.options = replace(
            options,
            fbank=replace(options.fbank, dither=0.0),
            mfcc=replace(options.mfcc, dither=0.0),
            pitch_post=replace(options.pitch_post, delta_pitch_noise_stddev=0.0),
        )
        cmvn = yaml.safe_load(path.read_text(encoding="utf-8")).get("cmvn")
        self.stats = None if cmvn is None else read_stats(path.parent / cmvn)

    @property
    def rate(self) -> int:
        return int(self.options.frame.sample_frequency)

    @property
    def frame_shift_s(self) -> float:
        return self.options.frame.frame_shift / 1000

    def __call__(self, samples: np.ndarray) -> np.ndarray:
        return compute_features(Audio(samples, self.rate), self.options, utterance="audio", stats=self.stats)


def speech_input(config: SpeechTrainConfig, model: SpeechModel, *, folder: Path, device: torch.device) -> SpeechInput:
    """Of a model and its training configuration."""
    if config.input_size is None:
        rate = parse_rate(config.frontend_conf.get("fs", 16000))
        return SpeechInput(rate=rate, frame_shift_s=_samples_per_frame(model, device) / rate)
    path = folder / FEATURES_FILE
    recipe = FeatureRecipe(path) if path.exists() else None
    rate = 16000 if recipe is None else recipe.rate
    shift_s = 0.01 if recipe is None else recipe.frame_shift_s
    return SpeechInput(
        rate=rate, frame_shift_s=_samples_per_frame(model, device) * shift_s, recipe=recipe, wants_features=True
    )


def _samples_per_frame(model: SpeechModel, device: torch.device) -> int:
    """Samples (or feature frames) between two encoder frames."""
    short, long = 1 << 20, 1 << 22
    frames: list[int] = model.output_lengths(torch.tensor([short, long], device=device)).tolist()
    return round((long - short) / (frames[1] - frames[0]))


@runtime_checkable
class _ArrayLike(Protocol):
    """NumPy's arrays, and what can become one, such as a tensor."""

    def __array__(self) -> np.ndarray: ...


def samples_of(audio: Any, rate: Any = None) -> Audio:
    """Samples (with `rate`) or (samples, rate), as float32 in [-1, 1]; of several channels the first."""
    if isinstance(audio, tuple):
        audio, rate = _pair(audio)
    if not isinstance(audio, _ArrayLike):
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
    if isinstance(audio[0], numbers.Real) and isinstance(audio[1], _ArrayLike):
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
