"""Effects of `data_aug_effects` that are recursive filters, for samples (time,) or (time, channels).

The second-order filters are those of R. Bristow-Johnson, "Cookbook formulae for audio equalizer biquad filter
coefficients". As in torchaudio, which ESPnet2 calls, the result is limited to [-1, 1].
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from tympan.config.range import Range
from tympan.data.waveform_effects import Effect
from tympan.errors import UserError
from tympan.runtime.compiled import compiled

Coefficients = tuple[float, float, float]


def recursive_filter(samples: np.ndarray, b: Coefficients, a: Coefficients) -> np.ndarray:
    """a0 y[t] = b0 x[t] + b1 x[t-1] + b2 x[t-2] - a1 y[t-1] - a2 y[t-2], limited to [-1, 1]."""
    columns = np.ascontiguousarray(samples.reshape(len(samples), -1).T, dtype=np.float64)
    out = np.empty_like(columns)
    for channel in range(len(columns)):
        _recursion()(columns[channel], out[channel], *(value / a[0] for value in (*b, *a[1:])))
    limited: np.ndarray = np.clip(out.T.reshape(samples.shape), -1.0, 1.0).astype(np.float32)
    return limited


@functools.cache
def _recursion() -> Callable[..., None]:
    """Compile the filter at first use. numpy can't vectorize it, because each output depends on the previous one."""
    return compiled()(_recur)


def _recur(x: np.ndarray, y: np.ndarray, b0: float, b1: float, b2: float, a1: float, a2: float) -> None:
    x1 = x2 = y1 = y2 = 0.0
    for index in range(x.size):
        value = b0 * x[index] + b1 * x1 + b2 * x2 - a1 * y1 - a2 * y2
        x2, x1 = x1, x[index]
        y2, y1 = y1, value
        y[index] = value


@dataclass(frozen=True)
class Deemphasis(Effect):
    """y[t] = x[t] + coeff * y[t - 1]."""

    coeff: Annotated[float, Range(-1, 1)] = 0.97

    def __call__(self, samples: np.ndarray, _rate: int, _rng: np.random.Generator) -> np.ndarray:
        return recursive_filter(samples, (1.0, 0.0, 0.0), (1.0, -self.coeff, 0.0))


@dataclass(frozen=True)
class Lowpass(Effect):
    """Low-pass filter. `Q` is the quality factor: the higher, the steeper."""

    cutoff_freq: Annotated[float, Range(above=0, most=1_000_000)] = 1000
    Q: Annotated[float, Range(above=0, most=10_000)] = 0.707
    needs_rate: ClassVar[bool] = True

    def __call__(self, samples: np.ndarray, rate: int, _rng: np.random.Generator) -> np.ndarray:
        cosine, alpha = _angle(self.cutoff_freq, self.Q, rate)
        return recursive_filter(samples, ((1 - cosine) / 2, 1 - cosine, (1 - cosine) / 2), _poles(cosine, alpha))


@dataclass(frozen=True)
class Highpass(Effect):
    """High-pass filter. `Q` is the quality factor, as in `Lowpass`."""

    cutoff_freq: Annotated[float, Range(above=0, most=1_000_000)] = 3000
    Q: Annotated[float, Range(above=0, most=10_000)] = 0.707
    needs_rate: ClassVar[bool] = True

    def __call__(self, samples: np.ndarray, rate: int, _rng: np.random.Generator) -> np.ndarray:
        cosine, alpha = _angle(self.cutoff_freq, self.Q, rate)
        return recursive_filter(samples, ((1 + cosine) / 2, -1 - cosine, (1 + cosine) / 2), _poles(cosine, alpha))


@dataclass(frozen=True)
class Bandpass(Effect):
    """Band-pass filter with a peak gain of 0 dB, or of `Q` with `const_skirt_gain`."""

    center_freq: Annotated[float, Range(above=0, most=1_000_000)] = 3000
    Q: Annotated[float, Range(above=0, most=10_000)] = 0.707
    const_skirt_gain: bool = False
    needs_rate: ClassVar[bool] = True

    def __call__(self, samples: np.ndarray, rate: int, _rng: np.random.Generator) -> np.ndarray:
        cosine, alpha = _angle(self.center_freq, self.Q, rate)
        gain = alpha * self.Q if self.const_skirt_gain else alpha
        return recursive_filter(samples, (gain, 0.0, -gain), _poles(cosine, alpha))


@dataclass(frozen=True)
class Bandreject(Effect):
    """Band-reject filter with a notch at `center_freq`."""

    center_freq: Annotated[float, Range(above=0, most=1_000_000)] = 3000
    Q: Annotated[float, Range(above=0, most=10_000)] = 0.707
    needs_rate: ClassVar[bool] = True

    def __call__(self, samples: np.ndarray, rate: int, _rng: np.random.Generator) -> np.ndarray:
        cosine, alpha = _angle(self.center_freq, self.Q, rate)
        return recursive_filter(samples, (1.0, -2 * cosine, 1.0), _poles(cosine, alpha))


@dataclass(frozen=True)
class Equalization(Effect):
    """Peaking equalizer with a gain of `gain` dB at `center_freq`."""

    center_freq: Annotated[float, Range(above=0, most=1_000_000)] = 1000
    gain: Annotated[float, Range(-200, 200)] = 0.0
    Q: Annotated[float, Range(above=0, most=10_000)] = 0.707
    needs_rate: ClassVar[bool] = True

    def __call__(self, samples: np.ndarray, rate: int, _rng: np.random.Generator) -> np.ndarray:
        cosine, alpha = _angle(self.center_freq, self.Q, rate)
        root = 10 ** (self.gain / 40)
        zeros = (1 + alpha * root, -2 * cosine, 1 - alpha * root)
        return recursive_filter(samples, zeros, _poles(cosine, alpha / root))


def _angle(frequency: float, quality: float, rate: int) -> tuple[float, float]:
    """Return the cosine of the angular frequency, and alpha as defined in the cookbook."""
    if not 0 < frequency < rate / 2:
        raise UserError(
            f"data_aug_effects: a filter at {frequency:g} Hz needs a sample rate of more than {2 * frequency:g} Hz, "
            f"found {rate} Hz"
        )
    angle = 2 * math.pi * frequency / rate
    return math.cos(angle), math.sin(angle) / (2 * quality)


def _poles(cosine: float, alpha: float) -> Coefficients:
    return 1 + alpha, -2 * cosine, 1 - alpha
