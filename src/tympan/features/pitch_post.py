"""From raw pitch to features: voicing, normalized log pitch, and delta pitch (Kaldi's ProcessPitch)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from tympan.config.range import Range
from tympan.errors import UserError
from tympan.features.arrays import Floats
from tympan.features.deltas import add_deltas
from tympan.features.framing import Amount, Count, Size, check_ranges


@dataclass(frozen=True)
class PitchPostOptions:
    """Options of process-kaldi-pitch-feats, with '_' for '-'."""

    pitch_scale: Amount = 2.0
    pov_scale: Amount = 2.0
    pov_offset: Amount = 0.0
    delta_pitch_scale: Amount = 10.0
    delta_pitch_noise_stddev: Size = 0.005
    """Noise that hides the quantization of lags; 0: no noise."""
    normalization_left_context: Count = 75
    normalization_right_context: Count = 75
    delta_window: Annotated[int, Range(1, 1_000_000)] = 2
    delay: Count = 0
    add_pov_feature: bool = True
    add_normalized_log_pitch: bool = True
    add_delta_pitch: bool = True
    add_raw_log_pitch: bool = False

    def __post_init__(self) -> None:
        if self.dim == 0:
            raise UserError(
                "at least one of --add-pov-feature, --add-normalized-log-pitch, --add-delta-pitch and "
                "--add-raw-log-pitch must be true"
            )
        check_ranges(self)

    @property
    def dim(self) -> int:
        return self.add_pov_feature + self.add_normalized_log_pitch + self.add_delta_pitch + self.add_raw_log_pitch


def process_pitch(raw: Floats, options: PitchPostOptions, *, rng: np.random.Generator | None = None) -> Floats:
    """(frames, 2) of correlation and Hz -> (frames + delay, dim) float32. The noise is drawn from `rng`."""
    frames = len(raw)
    if frames == 0:
        return np.zeros((0, options.dim), np.float32)
    correlation = np.clip(raw[:, 0].astype(np.float64), -1.0, 1.0)
    log_pitch = np.log(raw[:, 1].astype(np.float64))
    columns: list[Floats] = []
    if options.add_pov_feature:
        columns.append(options.pov_scale * ((1.0001 - correlation) ** 0.15 - 1.0) + options.pov_offset)
    if options.add_normalized_log_pitch:
        columns.append(options.pitch_scale * (log_pitch - _surrounding_mean(log_pitch, _voicing(correlation), options)))
    if options.add_delta_pitch:
        slope = add_deltas(log_pitch[:, None], order=1, window=options.delta_window)[:, 1].astype(np.float64)
        if options.delta_pitch_noise_stddev:
            noise = (rng or np.random.default_rng()).standard_normal(frames)
            slope += options.delta_pitch_noise_stddev * noise
        columns.append(options.delta_pitch_scale * slope)
    if options.add_raw_log_pitch:
        columns.append(log_pitch)
    delayed = np.maximum(np.arange(frames + options.delay) - options.delay, 0)
    return np.stack(columns, axis=1).astype(np.float32)[delayed]


def _voicing(correlation: Floats) -> Floats:
    """Probability that a frame is voiced: the authors' fit to the Keele corpus."""
    size = np.abs(correlation)
    log_odds = (
        -5.2 + 5.4 * np.exp(7.5 * (size - 1)) + 4.8 * size - 2 * np.exp(-10 * size) + 4.2 * np.exp(20 * (size - 1))
    )
    return np.asarray(1 / (1 + np.exp(-log_odds)))


def _surrounding_mean(values: Floats, weights: Floats, options: PitchPostOptions) -> Floats:
    """Weighted mean over a window around each frame, truncated at the ends of the file."""
    index = np.arange(len(values))
    first = np.maximum(index - options.normalization_left_context, 0)
    last = np.minimum(index + options.normalization_right_context + 1, len(values))
    weight_sums = np.cumsum(np.concatenate([[0.0], weights]))
    value_sums = np.cumsum(np.concatenate([[0.0], weights * values]))
    return np.asarray((value_sums[last] - value_sums[first]) / (weight_sums[last] - weight_sums[first]))
