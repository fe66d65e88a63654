"""Kaldi's two resamplers: Hann-windowed sinc interpolation on a regular grid, and at arbitrary points.

Elsewhere soxr resamples audio; pitch needs exactly these filters, because its results depend on them.
"""

from __future__ import annotations

import math

import numpy as np

from tympan.features.arrays import Floats


class GridResampler:
    """Low-pass filter at `cutoff_hz` and resample from one integer rate to another."""

    def __init__(self, rate_in: int, rate_out: int, *, cutoff_hz: float, num_zeros: int) -> None:
        common = math.gcd(rate_in, rate_out)
        self._in_step, self._out_step = rate_in // common, rate_out // common
        self._rate_in, self._rate_out = rate_in, rate_out
        self._half_width_s = num_zeros / (2.0 * cutoff_hz)
        # One filter for each position of an output sample between input samples; they repeat every `_out_step`.
        self._filters = []
        for phase in range(self._out_step):
            time_s = phase / rate_out
            first = math.ceil((time_s - self._half_width_s) * rate_in)
            last = math.floor((time_s + self._half_width_s) * rate_in)
            offsets_s = time_s - np.arange(first, last + 1) / rate_in
            weights = windowed_sinc(offsets_s, cutoff_hz=cutoff_hz, num_zeros=num_zeros) / rate_in
            self._filters.append((first, weights.astype(np.float32)))

    def num_output(self, num_input: int, *, is_finished: bool) -> int:
        """Number of output samples for a number of input samples; before the end, half a filter is held back."""
        ticks_hz = math.lcm(self._rate_in, self._rate_out)
        ticks = num_input * (ticks_hz // self._rate_in)
        if not is_finished:
            ticks -= math.floor(self._half_width_s * ticks_hz)
        return max(0, math.ceil(ticks / (ticks_hz // self._rate_out)))

    def resample(self, samples: Floats) -> Floats:
        """The whole signal at the new rate, with zeros assumed before and after it."""
        total = self.num_output(len(samples), is_finished=True)
        output = np.zeros(total, np.float32)
        before = max(0, -min(first for first, _ in self._filters))
        after = max(first + len(weights) for first, weights in self._filters) + self._in_step
        padded = np.concatenate([np.zeros(before, np.float32), samples, np.zeros(after, np.float32)])
        for phase, (first, weights) in enumerate(self._filters):
            windows = np.lib.stride_tricks.sliding_window_view(padded, len(weights))[before + first :: self._in_step]
            places = output[phase :: self._out_step]
            places[:] = windows[: len(places)] @ weights
        return output


def interpolation_matrix(num_input: int, points_s: Floats, *, rate_in: float, num_zeros: int) -> Floats:
    """(num_input, points): multiplies a signal sampled at `rate_in` from time 0 to give its values at these times.

    Times are float32, as in Kaldi: at 4 kHz that moves the weights by 1e-5, more than the rest of the rounding.
    """
    cutoff_hz = 0.5 * rate_in
    samples_s = np.arange(num_input, dtype=np.float32) / np.float32(rate_in)
    offsets_s = (points_s.astype(np.float32)[None, :] - samples_s[:, None]).astype(np.float64)
    return windowed_sinc(offsets_s, cutoff_hz=cutoff_hz, num_zeros=num_zeros) / rate_in


def windowed_sinc(offsets_s: Floats, *, cutoff_hz: float, num_zeros: int) -> Floats:
    """2 f sinc(2 f t) under a Hann window with `num_zeros` zero crossings on each side of 0."""
    hann = 0.5 * (1 + np.cos(2 * np.pi * cutoff_hz / num_zeros * offsets_s))
    inside = np.abs(offsets_s) < num_zeros / (2.0 * cutoff_hz)
    return np.where(inside, hann * 2 * cutoff_hz * np.sinc(2 * cutoff_hz * offsets_s), 0.0)
