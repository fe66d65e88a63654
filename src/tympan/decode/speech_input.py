"""What stands between samples and the model: nothing for a model with a frontend, stored-feature recipes for others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from tympan.data.audio import Audio
from tympan.decode.model_files import FEATURES_FILE
from tympan.errors import UserError
from tympan.features.cmvn import read_stats
from tympan.features.extractor import compute_features, load_options
from tympan.features.frontend import parse_rate


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


def speech_input(config: Any, model: Any, *, folder: Path) -> SpeechInput:
    """Of a model and its training configuration."""
    if model.frontend is not None:
        rate = parse_rate(config.frontend_conf.get("fs", 16000))
        return SpeechInput(rate=rate, frame_shift_s=_samples_a_frame(model) / rate)
    path = folder / FEATURES_FILE
    recipe = FeatureRecipe(path) if path.exists() else None
    rate = 16000 if recipe is None else recipe.rate
    shift_s = 0.01 if recipe is None else recipe.frame_shift_s
    return SpeechInput(rate=rate, frame_shift_s=_samples_a_frame(model) * shift_s, recipe=recipe, wants_features=True)


def _samples_a_frame(model: Any) -> int:
    """Samples (or feature frames) between two encoder frames."""
    short, long = 1 << 20, 1 << 22
    device = next(model.parameters()).device
    frames = model.output_lengths(torch.tensor([short, long], device=device)).tolist()
    return round((long - short) / (frames[1] - frames[0]))
