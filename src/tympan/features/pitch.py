"""Kaldi's pitch tracker: normalized cross-correlation of each frame, and a smooth path through the best lags.

P. Ghahremani et al., "A pitch extraction algorithm tuned for automatic speech recognition", ICASSP 2014.
Shapes: frames (T), measured lags (M; integer samples at 4 kHz), lags (L; evenly spaced in log frequency).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

import numpy as np

from tympan.config.range import Range
from tympan.errors import UserError
from tympan.features.arrays import Floats, Ints
from tympan.features.framing import Count, Size, check_framing, check_ranges
from tympan.features.pitch_track import advance, trace_back
from tympan.features.windowed_sinc import GridResampler, interpolation_matrix

_BLOCK = 1024
"""Number of frames whose correlations are in memory at a time."""


@dataclass(frozen=True)
class PitchOptions:
    """Options of compute-kaldi-pitch-feats, with '_' for '-'."""

    sample_frequency: Size = 16000.0
    frame_length: Size = 25.0
    """ms"""
    frame_shift: Size = 10.0
    """ms"""
    preemphasis_coefficient: Size = 0.0
    min_f0: Annotated[float, Range(10, 20_000)] = 50.0
    max_f0: Size = 400.0
    soft_min_f0: Size = 10.0
    penalty_factor: Annotated[float, Range(1e-6, 1_000_000)] = 0.1
    lowpass_cutoff: Annotated[float, Range(above=0, most=1_000_000)] = 1000.0
    resample_frequency: Annotated[float, Range(100, 48_000)] = 4000.0
    delta_pitch: Annotated[float, Range(1e-4, 1)] = 0.005
    """Ratio between neighbouring lags, less 1."""
    nccf_ballast: Size = 7000.0
    nccf_ballast_online: bool = False
    lowpass_filter_width: Annotated[int, Range(1, 100)] = 1
    upsample_filter_width: Annotated[int, Range(1, 100)] = 5
    max_frames_latency: Count = 0
    """Only affects the latency of online decoding; the result for a whole file is the same."""
    frames_per_chunk: Count = 0
    simulate_first_pass_online: bool = False
    recompute_frame: Count = 500
    snip_edges: bool = True

    def __post_init__(self) -> None:
        if self.simulate_first_pass_online:
            raise UserError("--simulate-first-pass-online=true is not supported; use false")
        check_framing(self.sample_frequency, frame_length=self.frame_length, frame_shift=self.frame_shift)
        check_ranges(self)
        check_framing(self.resample_frequency, frame_length=self.frame_length, frame_shift=self.frame_shift)
        if not 0 < self.min_f0 < self.max_f0:
            raise UserError(f"--min-f0={self.min_f0:g} must be above 0 and below --max-f0={self.max_f0:g}")
        if self.first_lag < 1:
            raise UserError(
                f"--max-f0={self.max_f0:g} is too high for --upsample-filter-width={self.upsample_filter_width} and "
                f"--resample-frequency={self.resample_frequency:g}"
            )
        if 2 * self.lowpass_cutoff > min(self.sample_frequency, self.resample_frequency):
            raise UserError(
                f"--lowpass-cutoff={self.lowpass_cutoff:g} must not exceed half of --sample-frequency and "
                "--resample-frequency"
            )

    @property
    def window(self) -> int:
        """Number of samples that are correlated, at the resampled rate."""
        return int(self.resample_frequency * 0.001 * self.frame_length)

    @property
    def shift(self) -> int:
        return int(self.resample_frequency * 0.001 * self.frame_shift)

    @property
    def first_lag(self) -> int:
        margin = self.upsample_filter_width / (2.0 * self.resample_frequency)
        return int(np.ceil(self.resample_frequency * (1.0 / self.max_f0 - margin)))

    @property
    def last_lag(self) -> int:
        margin = self.upsample_filter_width / (2.0 * self.resample_frequency)
        return int(np.floor(self.resample_frequency * (1.0 / self.min_f0 + margin)))


def pitch(samples: Floats, options: PitchOptions) -> Floats:
    """(T, 2) float32: the normalized cross-correlation at the chosen lag, and the pitch in Hz.

    Every frame has a pitch; a low correlation means that the frame is unvoiced. T is 0 for audio that is
    shorter than a frame.
    """
    tools = _tools(options)
    resampler, lags_s = tools.resampler, tools.lags_s
    signal = resampler.resample(np.asarray(samples, np.float32) * np.float32(32768))
    ends = _chunk_ends(len(samples), options, resampler)
    frames = _num_frames(len(signal), options, is_finished=True)
    if frames == 0:
        return np.zeros((0, 2), np.float32)
    ballast, new_ballast = _ballasts(signal, frames, ends, options)

    costs = np.zeros(len(lags_s), np.float32)
    back_pointers = np.empty((frames, len(lags_s)), np.int16)
    voicing = np.empty((frames, options.last_lag + 1 - options.first_lag), np.float32)
    factor = np.float32(np.log(1.0 + options.delta_pitch) ** 2 * options.penalty_factor)
    for start in range(0, frames, _BLOCK):
        block = slice(start, min(start + _BLOCK, frames))
        products, norms = _correlate(_cut(signal, block, options), options)
        voicing[block] = _divide(products, norms)
        nccf = _divide(products, norms + ballast[block, None])
        if new_ballast is not None:
            average = norms.mean(axis=1)
            nccf *= np.sqrt(_ratio(ballast[block] + average, new_ballast[block] + average))[:, None]
        smooth = nccf.astype(np.float32) @ tools.weights
        local_costs = (1 - smooth) + np.float32(options.soft_min_f0) * (smooth * lags_s)
        advance(costs, local_costs, factor, back_pointers[block])
    path = trace_back(int(np.argmin(costs)), back_pointers)
    nccf_at_path = np.einsum("tm,tm->t", voicing, tools.weights.T[path])
    return np.stack([nccf_at_path, 1.0 / lags_s[path]], axis=1).astype(np.float32)


@dataclass(frozen=True)
class _Tools:
    """Values that depend only on the options."""

    resampler: GridResampler
    lags_s: Floats
    """(L,)"""
    weights: Floats
    """(M, L): from measured lags to lags."""


@lru_cache(maxsize=8)
def _tools(options: PitchOptions) -> _Tools:
    rates = options.sample_frequency, options.resample_frequency
    if any(rate != int(rate) for rate in rates):
        raise UserError("--sample-frequency and --resample-frequency must be integers")
    resampler = GridResampler(
        int(rates[0]), int(rates[1]), cutoff_hz=options.lowpass_cutoff, num_zeros=options.lowpass_filter_width
    )
    lags_s = _select_lags(options)
    offset = np.float32(options.first_lag) / np.float32(options.resample_frequency)
    weights = interpolation_matrix(
        options.last_lag + 1 - options.first_lag,
        lags_s - offset,
        rate_in=options.resample_frequency,
        num_zeros=options.upsample_filter_width,
    )
    return _Tools(resampler, lags_s, weights.astype(np.float32))


def _select_lags(options: PitchOptions) -> Floats:
    """(L,) seconds from 1 / max_f0 to 1 / min_f0, each longer than the last by delta_pitch, float32 as in Kaldi."""
    lag, last = np.float32(1.0 / options.max_f0), np.float32(1.0 / options.min_f0)
    lags = []
    while lag <= last:
        lags.append(lag)
        lag = np.float32(np.float64(lag) * (1.0 + np.float64(np.float32(options.delta_pitch))))
    return np.array(lags, np.float32)


def _chunk_ends(num_samples: int, options: PitchOptions, resampler: GridResampler) -> list[int]:
    """Lengths of the resampled signal after each chunk of audio, and after its end.

    Even a whole file reaches Kaldi's tracker in two parts: what the filter can output at once, and the tail that it
    outputs when the input has ended.
    """
    chunk = int(options.frames_per_chunk * options.sample_frequency * options.frame_shift / 1000.0) or num_samples
    known = [resampler.num_output(end, is_finished=False) for end in range(chunk, num_samples, max(chunk, 1))]
    known.append(resampler.num_output(num_samples, is_finished=False))
    return [*known, resampler.num_output(num_samples, is_finished=True)]


def _num_frames(num_samples: int, options: PitchOptions, *, is_finished: bool) -> int:
    """Number of frames for a number of resampled samples; before the end, the longest lag must be available too."""
    length = options.window + (0 if is_finished else options.last_lag)
    if num_samples < length:
        return 0
    if options.snip_edges:
        return (num_samples - length) // options.shift + 1
    return int((num_samples - (0 if is_finished else length // 2)) / options.shift + 0.5)


def _starts(frames: Ints, options: PitchOptions) -> Ints:
    """First sample of each frame; negative for frames that begin before the signal."""
    if options.snip_edges:
        return frames * options.shift
    full = options.window + options.last_lag
    return ((frames + 0.5) * options.shift).astype(np.int64) - full // 2


def _ballasts(signal: Floats, frames: int, ends: list[int], options: PitchOptions) -> tuple[Floats, Floats | None]:
    """The ballast added to the product of energies, so that quiet frames don't look voiced: (T,), and its correction.

    It grows with the mean power of the signal that was available when the frame was computed. For the first
    `recompute_frame` frames it is corrected once more of the signal is available, if the power changed by over 2 %.
    """
    power = np.cumsum(np.concatenate([[0.0], signal.astype(np.float64) ** 2]))
    total = np.cumsum(np.concatenate([[0.0], signal.astype(np.float64)]))

    def mean_square(known: Ints) -> Floats:
        return power[known] / known - (total[known] / known) ** 2

    index = np.arange(frames)
    available = np.array([_num_frames(end, options, is_finished=i == len(ends) - 1) for i, end in enumerate(ends)])
    # A chunk never removes a frame, although rounding without snip_edges could.
    chunk_of = np.searchsorted(np.maximum.accumulate(available), index, side="right")
    known = np.array(ends)[np.minimum(chunk_of, len(ends) - 1)]
    if options.nccf_ballast_online:
        full = options.window + options.last_lag
        known = np.minimum(_starts(index, options) + full, known)
        return _ballast(mean_square(known), options), None
    used = mean_square(known)
    recompute = options.recompute_frame
    better = mean_square(known[recompute - 1 : recompute] if frames >= recompute > 0 else np.array([len(signal)]))[0]
    first = used[: min(recompute, frames)]
    if len(first) == 0 or np.all(np.abs(first - better) <= 0.01 * (np.abs(first) + np.abs(better))):
        return _ballast(used, options), None
    corrected = used.copy()
    corrected[: len(first)] = better
    return _ballast(used, options), _ballast(corrected, options)


def _ballast(mean_square: Floats, options: PitchOptions) -> Floats:
    return (mean_square * options.window) ** 2 * options.nccf_ballast


def _cut(signal: Floats, block: slice, options: PitchOptions) -> Floats:
    """(frames, window + last_lag): each frame extended by the longest lag; zeros beyond the signal."""
    starts = _starts(np.arange(block.start, block.stop), options)
    full = options.window + options.last_lag
    before = max(0, -int(starts[0]))
    after = max(0, int(starts[-1]) + full - len(signal))
    low = max(0, int(starts[0]))
    piece = signal[low : int(starts[-1]) + full]
    padded = np.concatenate([np.zeros(before, np.float32), piece, np.zeros(after, np.float32)])
    windows: Floats = np.lib.stride_tricks.sliding_window_view(padded, full)[starts - starts[0]].astype(np.float64)
    if options.preemphasis_coefficient:
        windows = _preemphasise(windows, starts, len(signal), options.preemphasis_coefficient)
    return windows


def _preemphasise(windows: Floats, starts: Ints, length: int, coefficient: float) -> Floats:
    """As in Kaldi, over the part of each frame that is inside the signal."""
    place = starts[:, None] + np.arange(windows.shape[1])
    previous = np.concatenate([windows[:, :1], windows[:, :-1]], axis=1)
    previous = np.where(place == 0, windows, previous)
    return np.where((place >= 0) & (place < length), windows - coefficient * previous, 0.0)


def _correlate(windows: Floats, options: PitchOptions) -> tuple[Floats, Floats]:
    """(frames, M) twice: the product of the frame with itself `lag` later, and the product of their energies."""
    window, first, last = options.window, options.first_lag, options.last_lag
    windows = windows - windows[:, :window].mean(axis=1, keepdims=True)
    size = 1 << (windows.shape[1] - 1).bit_length()
    spectrum = np.fft.rfft(windows, size)
    own = np.fft.rfft(windows[:, :window], size)
    products = np.fft.irfft(np.conj(own) * spectrum, size)[:, first : last + 1]
    energy = np.cumsum(np.pad(windows**2, ((0, 0), (1, 0))), axis=1)
    lags = np.arange(first, last + 1)
    energies = energy[:, lags + window] - energy[:, lags]
    return products, energies * energy[:, window : window + 1]


def _divide(products: Floats, squares: Floats) -> Floats:
    """products / sqrt(squares), 0 in digital silence."""
    return np.divide(products, np.sqrt(squares), out=np.zeros_like(products), where=squares > 0)


def _ratio(numerator: Floats, denominator: Floats) -> Floats:
    return np.divide(numerator, denominator, out=np.ones_like(numerator), where=denominator > 0)
