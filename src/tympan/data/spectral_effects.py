"""Effects of `data_aug_effects` that change the short-time spectrum of samples (time,) or (time, channels).

Window sizes and shifts are in seconds, as in ESPnet2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from tympan.config.range import Range
from tympan.data.audio import resample
from tympan.data.waveform_effects import Effect, require_factor

Window = Literal["hann", "hamming", "blackman", "bartlett"]
_WINDOWS: dict[str, Callable[[int], Tensor]] = {
    "hann": torch.hann_window,
    "hamming": torch.hamming_window,
    "blackman": torch.blackman_window,
    "bartlett": torch.bartlett_window,
}


@dataclass(frozen=True)
class Analysis:
    """The short-time Fourier transform of one effect, in samples."""

    size: int
    shift: int
    window: Tensor

    @property
    def advance(self) -> Tensor:
        """(bins, 1): the phase advance of each bin from one frame to the next."""
        return torch.linspace(0, math.pi * self.shift, self.size // 2 + 1)[:, None]

    def spectrum(self, samples: np.ndarray) -> Tensor:
        """Return the spectrum (channels, bins, frames)."""
        return torch.stft(
            torch.from_numpy(np.ascontiguousarray(np.atleast_2d(samples.T), dtype=np.float32)),
            self.size,
            self.shift,
            len(self.window),
            window=self.window,
            return_complex=True,
        )

    def waveform(self, spectrum: Tensor, length: int) -> np.ndarray:
        """Return the samples: (time,) for one channel, (time, channels) for several."""
        out = torch.istft(spectrum, self.size, self.shift, len(self.window), window=self.window, length=length)
        return out[0].numpy() if len(out) == 1 else np.ascontiguousarray(out.numpy().T)


class HasAnalysis(Protocol):
    """Options of the short-time Fourier transform of an effect, in seconds."""

    @property
    def n_fft(self) -> float: ...
    @property
    def win_length(self) -> float | None: ...
    @property
    def hop_length(self) -> float | None: ...
    @property
    def window(self) -> Window | None: ...


def analysis_of(options: HasAnalysis, rate: int) -> Analysis:
    size = int(rate * options.n_fft)
    shift = size // 4 if options.hop_length is None else int(rate * options.hop_length)
    length = size if options.win_length is None else int(rate * options.win_length)
    return Analysis(size, shift, torch.ones(length) if options.window is None else _WINDOWS[options.window](length))


def stretched(spectrum: Tensor, factor: float, advance: Tensor) -> Tensor:
    """A phase vocoder that makes the signal `factor` times as fast, at the same pitch.

    Magnitudes are interpolated between frames. The phase advance between frames is that of the original.
    """
    times = torch.arange(0, spectrum.size(-1), factor)
    share = times % 1.0
    padded = torch.nn.functional.pad(spectrum, (0, 2))
    here, there = padded[..., times.long()], padded[..., times.long() + 1]
    turn = there.angle() - here.angle() - advance
    turn = turn - 2 * math.pi * torch.round(turn / (2 * math.pi)) + advance
    phase = torch.cat([spectrum[..., :1].angle(), turn[..., :-1]], dim=-1).cumsum(-1)
    return torch.polar(share * there.abs() + (1 - share) * here.abs(), phase)


@dataclass(frozen=True)
class TimeStretch(Effect):
    """Change the speed without changing the pitch."""

    factor: Annotated[float, Range(0.01, 100)]
    n_fft: Annotated[float, Range(above=0, most=1_000_000)] = 0.032
    win_length: Annotated[float | None, Range(above=0, most=1_000_000)] = None
    hop_length: Annotated[float | None, Range(above=0, most=1_000_000)] = 0.008
    window: Window | None = "hann"
    needs_rate: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_factor(self.factor)

    @property
    def stretch(self) -> float:
        return 1.0 / self.factor

    def __call__(self, samples: np.ndarray, rate: int, _rng: np.random.Generator) -> np.ndarray:
        frames = analysis_of(self, rate)
        if len(samples) <= frames.size // 2:
            return samples  # too short for the padding of a frame
        changed = stretched(frames.spectrum(samples), self.factor, frames.advance)
        return frames.waveform(changed, round(len(samples) / self.factor))


@dataclass(frozen=True)
class PitchShift(Effect):
    """Shift the pitch by `n_steps` steps of 1 / `bins_per_octave` octave, without changing the speed."""

    n_steps: Annotated[float, Range(-120, 120)]
    bins_per_octave: Annotated[int, Range(1, 10_000)] = 12
    n_fft: Annotated[float, Range(above=0, most=1_000_000)] = 0.032
    win_length: Annotated[float | None, Range(above=0, most=1_000_000)] = None
    hop_length: Annotated[float | None, Range(above=0, most=1_000_000)] = 0.008
    window: Window | None = "hann"
    needs_rate: ClassVar[bool] = True

    def __call__(self, samples: np.ndarray, rate: int, rng: np.random.Generator) -> np.ndarray:
        factor = 2.0 ** (-self.n_steps / self.bins_per_octave)
        stretch = TimeStretch(factor, self.n_fft, self.win_length, self.hop_length, self.window)
        slower = stretch(samples, rate, rng)
        if slower is samples:
            return samples
        shifted = resample(slower, int(rate / factor), rate)[: len(samples)]
        missing = [(0, len(samples) - len(shifted)), *([(0, 0)] * (samples.ndim - 1))]
        return np.pad(shifted, missing)


@dataclass(frozen=True)
class CorruptPhase(Effect):
    """Add Gaussian noise with standard deviation `scale`, in radians, to every phase."""

    scale: Annotated[float, Range(-1_000, 1_000)] = 0.5
    n_fft: Annotated[float, Range(above=0, most=1_000_000)] = 0.032
    win_length: Annotated[float | None, Range(above=0, most=1_000_000)] = None
    hop_length: Annotated[float | None, Range(above=0, most=1_000_000)] = 0.008
    window: Window | None = "hann"
    needs_rate: ClassVar[bool] = True

    def __call__(self, samples: np.ndarray, rate: int, rng: np.random.Generator) -> np.ndarray:
        frames = analysis_of(self, rate)
        if len(samples) <= frames.size // 2:
            return samples
        spectrum = frames.spectrum(samples)
        noise = torch.from_numpy(rng.standard_normal(spectrum.shape, dtype=np.float32))
        changed = torch.polar(spectrum.abs(), spectrum.angle() + self.scale * noise)
        return frames.waveform(changed, len(samples))
