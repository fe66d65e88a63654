"""Convert recordings to the model's input: samples, or features for a model that was trained on stored features.

A model with a frontend takes samples. For other models, `features.yaml` beside the configuration describes how the
features are computed.
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

from tympan.config.model import SpeechTrainConfig
from tympan.config.yaml_text import read_mapping
from tympan.data.audio import Audio, Channel, Mixer, require_channel
from tympan.decode.model_files import FEATURES_FILE
from tympan.errors import UserError
from tympan.features.cmvn import read_stats
from tympan.features.extractor import compute_features, load_options
from tympan.features.frontend import parse_rate
from tympan.models.speech_model import LimitsInput, SpeechModel

AudioInput = str | os.PathLike[str] | np.ndarray | tuple[np.ndarray, int]

PCM_SCALES = {"int16": 2.0**15, "int32": 2.0**31}

MAX_LEVEL = 2.0
"""Floats must be in [-1, 1], but some tools exceed this a little. Samples above this limit were not scaled."""


@dataclass(frozen=True)
class SpeechInput:
    """The model's sample rate, the seconds between two encoder frames, and how stored features are made."""

    rate: int
    frame_shift_s: float
    recipe: FeatureRecipe | None = None
    wants_features: bool = False
    feature_shift_s: float = 0.01
    """Time between two frames of stored features."""
    max_s: float = math.inf
    """The model ignores the audio after this time."""
    channel: Channel = "mean"
    """What the model was trained on of recordings with several channels."""

    def prepare(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Convert samples (time,) to the model's input. Features (frames, size) are returned as they are."""
        if not self.wants_features:
            return list(inputs)
        return [item if item.ndim == 2 else self._features(item) for item in inputs]

    def _features(self, samples: np.ndarray) -> np.ndarray:
        if self.recipe is None:
            raise UserError(
                f"this model was trained on stored features: to take audio it needs a file {FEATURES_FILE} beside its "
                "config.yaml, which describes how the features are computed"
            )
        return self.recipe(samples)


class FeatureRecipe:
    """The features of `features.yaml`, normalized with the global statistics of the training data beside it."""

    def __init__(self, path: Path) -> None:
        options = load_options(path)
        # A transcription must be deterministic: no dither, even if it was used in training.
        self.options = replace(
            options,
            fbank=replace(options.fbank, dither=0.0),
            mfcc=replace(options.mfcc, dither=0.0),
            pitch_post=replace(options.pitch_post, delta_pitch_noise_stddev=0.0),
        )
        cmvn = read_mapping(path).get("cmvn")
        if not (cmvn is None or isinstance(cmvn, str)):
            raise UserError(f"{path}: cmvn must be the name of a file of statistics, or null; found {cmvn!r}")
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
    """The input description of a model, from its training configuration."""
    if config.takes_audio:
        rate = parse_rate(config.frontend_conf.get("fs", 16000))
        most = model.max_samples if isinstance(model, LimitsInput) else None
        return SpeechInput(
            rate=rate,
            frame_shift_s=_samples_per_frame(model, device, most) / rate,
            max_s=math.inf if most is None else most / rate,
            channel=config.channel if isinstance(config.channel, int) else "mean",
        )
    path = folder / FEATURES_FILE
    recipe = FeatureRecipe(path) if path.exists() else None
    rate = 16000 if recipe is None else recipe.rate
    shift_s = 0.01 if recipe is None else recipe.frame_shift_s
    return SpeechInput(
        rate=rate, frame_shift_s=_samples_per_frame(model, device, None) * shift_s, recipe=recipe, wants_features=True
    )


def _samples_per_frame(model: SpeechModel, device: torch.device, most: int | None) -> int:
    """Samples (or feature frames) between two encoder frames; `most` is the length that the model cuts its input to."""
    if most is not None:
        return round(most / int(model.output_lengths(torch.tensor([most], device=device))))
    short, long = 1 << 20, 1 << 22
    frames: list[int] = model.output_lengths(torch.tensor([short, long], device=device)).tolist()
    return round((long - short) / (frames[1] - frames[0]))


@runtime_checkable
class _ArrayLike(Protocol):
    """True for NumPy arrays and for objects that can be converted to one, such as tensors."""

    def __array__(self) -> np.ndarray: ...


def samples_of(audio: Any, rate: Any = None, *, channel: Channel = "mean") -> Audio:
    """Samples (with `rate`) or (samples, rate), as float32 (time,) in [-1, 1]: one channel, or the mean of all."""
    if isinstance(audio, tuple):
        audio, rate = _pair(audio)
    if not isinstance(audio, _ArrayLike):
        raise UserError(
            "a recording must be a path, an array of samples with rate=16000, or (samples, 16000); "
            f"found {_described(audio)}"
        )
    samples, rate = _array(audio), _rate(rate)
    if samples.ndim not in (1, 2) or (samples.ndim == 2 and not 0 < samples.shape[1] <= samples.shape[0]):
        raise UserError(f"samples must be an array (time,) or (time, channels), found shape {samples.shape}")
    if channel != "mean":
        require_channel(channel, samples.shape[1] if samples.ndim == 2 else 1, "the array of samples")
    mixer = Mixer(channel)
    samples = mixer(_as_float(samples))
    check_samples(samples, remedy="divide 16-bit PCM by 32768, or give it as numpy.int16")
    return Audio(samples, rate, mixer.channels_differ)


def check_samples(samples: np.ndarray, *, remedy: str) -> None:
    """UserError for samples that are not finite or not scaled: a model would invent a text for them."""
    if not np.isfinite(samples).all():
        raise UserError("the samples contain nan or inf")
    level = float(np.abs(samples).max(initial=0.0))
    if level > MAX_LEVEL:
        raise UserError(f"float samples must be in [-1, 1], found {level:g}: {remedy}")


def _pair(audio: tuple[Any, ...]) -> tuple[Any, Any]:
    if any(isinstance(item, str | os.PathLike) for item in audio):
        raise UserError("give several recordings as a list, not as a tuple: recognizer(['a.wav', 'b.flac'])")
    if len(audio) != 2:
        raise UserError(f"a tuple must be (samples, rate), found {len(audio)} values")
    if isinstance(audio[0], numbers.Real) and isinstance(audio[1], _ArrayLike):
        raise UserError(
            "a tuple must be (samples, rate), found (rate, samples), as scipy.io.wavfile.read returns it: swap the two"
        )
    return audio[0], audio[1]


def _rate(rate: Any) -> int:
    if rate is None:
        raise UserError("samples need their rate: recognizer(samples, rate=16000)")
    is_number = isinstance(rate, numbers.Real) and not isinstance(rate, bool)
    if not is_number or not math.isfinite(rate) or rate < 1 or rate != int(rate):
        raise UserError(f"the rate must be a positive integer in Hz such as rate=16000; found {_described(rate)}")
    return int(rate)


def _array(audio: Any) -> np.ndarray:
    try:
        return np.asarray(audio)
    except (TypeError, ValueError, RuntimeError) as error:  # such as a tensor on an accelerator
        raise UserError(f"the samples can't be converted to a NumPy array: {error}") from None


def _as_float(samples: np.ndarray) -> np.ndarray:
    """Convert to float32. Integers are PCM of their width; unsigned bytes have their zero at 128, as in wav files."""
    kind = samples.dtype.name
    if kind in PCM_SCALES:
        return (samples / PCM_SCALES[kind]).astype(np.float32)
    if kind == "uint8":
        return (samples / 128.0 - 1.0).astype(np.float32)
    if samples.dtype.kind in "iu":
        raise UserError(
            f"samples of {kind} have an ambiguous scale: pass 16-bit PCM as samples.astype(numpy.int16), "
            "or floats in [-1, 1] (int32 and uint8 are also accepted as PCM)"
        )
    if samples.dtype.kind != "f":
        raise UserError(f"samples must be floats or integers, found an array of {samples.dtype}")
    return samples.astype(np.float32)


def _described(value: object) -> str:
    """The type, and the value if it is short."""
    text = repr(value)
    return f"{type(value).__name__} {text}" if len(text) <= 40 and value is not None else type(value).__name__
