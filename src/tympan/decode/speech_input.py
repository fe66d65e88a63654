"""What stands between samples and the model: nothing for a model with a frontend, stored-feature recipes for others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from tympan.errors import UserError
from tympan.features.cmvn import apply_cmvn, read_stats
from tympan.features.conf import options_from
from tympan.features.deltas import add_deltas
from tympan.features.fbank import FbankOptions, MfccOptions, fbank, mfcc
from tympan.features.frontend import parse_rate
from tympan.features.pitch import PitchOptions, pitch
from tympan.features.pitch_post import PitchPostOptions, process_pitch

FEATURES_FILE = "features.yaml"


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
    """The features of `features.yaml`, with Kaldi's options and the global statistics of the training data."""

    def __init__(self, values: Mapping[str, Any], *, place: Path) -> None:
        self.kind: str = values.get("feats_type", "fbank_pitch")
        if self.kind not in ("fbank_pitch", "fbank", "mfcc"):
            raise UserError(f"{place}: feats_type is fbank_pitch, fbank or mfcc, found '{self.kind}'")
        self.rate = parse_rate(values.get("fs", 16000))
        frames = {"sample_frequency": self.rate, "dither": 0.0, **(values.get("fbank") or {})}
        pitches = {"sample_frequency": self.rate, **(values.get("pitch") or {})}
        # A transcription must not depend on chance: no dither, whatever was used in training.
        frames["dither"] = 0.0
        kind = MfccOptions if self.kind == "mfcc" else FbankOptions
        self.frame_options = options_from(kind, frames, place=str(place))
        self.pitch_options = options_from(PitchOptions, pitches, place=str(place))
        self.do_delta = bool(values.get("do_delta", False))
        cmvn = values.get("cmvn")
        self.stats = None if cmvn is None else read_stats(place.parent / cmvn)

    @classmethod
    def read(cls, path: Path) -> FeatureRecipe:
        """`features.yaml` and the statistics beside it."""
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise UserError(f"{path}: must be a mapping of options to values")
        return cls(values, place=path)

    @property
    def frame_shift_s(self) -> float:
        return self.frame_options.frame_shift / 1000

    def __call__(self, samples: np.ndarray) -> np.ndarray:
        if isinstance(self.frame_options, MfccOptions):
            features = mfcc(samples, self.frame_options)
        else:
            features = fbank(samples, self.frame_options)
        if self.kind == "fbank_pitch":
            options = PitchPostOptions(delta_pitch_noise_stddev=0.0)
            pitches = process_pitch(pitch(samples, self.pitch_options), options)
            frames = min(len(features), len(pitches))
            features = np.concatenate([features[:frames], pitches[:frames]], axis=1)
        if self.stats is not None:
            features = apply_cmvn(features, self.stats, norm_vars=True)
        return add_deltas(features) if self.do_delta else features


def speech_input(config: Any, model: Any, *, folder: Path) -> SpeechInput:
    """Of a model and its training configuration."""
    if model.frontend is not None:
        rate = parse_rate(config.frontend_conf.get("fs", 16000))
        return SpeechInput(rate=rate, frame_shift_s=_samples_a_frame(model) / rate)
    path = folder / FEATURES_FILE
    recipe = FeatureRecipe.read(path) if path.exists() else None
    rate = 16000 if recipe is None else recipe.rate
    shift_s = 0.01 if recipe is None else recipe.frame_shift_s
    return SpeechInput(rate=rate, frame_shift_s=_samples_a_frame(model) * shift_s, recipe=recipe, wants_features=True)


def _samples_a_frame(model: Any) -> int:
    """Samples (or feature frames) between two encoder frames."""
    short, long = 1 << 20, 1 << 22
    device = next(model.parameters()).device
    frames = model.output_lengths(torch.tensor([short, long], device=device)).tolist()
    return round((long - short) / (frames[1] - frames[0]))
