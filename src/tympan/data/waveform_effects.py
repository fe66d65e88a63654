"""Effects of `data_aug_effects` that change samples (time,) or (time, channels) directly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Protocol

import numpy as np
import soxr

from tympan.config.range import Range
from tympan.data.audio import resample
from tympan.errors import UserError

_LOWER_RATES = (8000, 16000, 22050, 24000, 32000, 44100, 48000)
_QUALITIES = {"kaiser_best": "VHQ", "kaiser_fast": "MQ", "scipy": "HQ", "polyphase": "LQ"}
"""librosa's resampling methods -> quality of soxr, from the steepest filter to the softest."""


class Effect(Protocol):
    """An effect on samples (time,) or (time, channels). Its dataclass fields are its options. Can be pickled."""

    needs_rate: ClassVar[bool] = False

    @property
    def stretch(self) -> float:
        """Largest factor by which a waveform may become longer."""
        return 1.0

    def __call__(self, samples: np.ndarray, rate: int, rng: np.random.Generator, /) -> np.ndarray:
        """Apply the effect. `rate` is 0 if recordings have several sample rates, unless the effect needs it."""
        ...


def change_speed(samples: np.ndarray, factor: float) -> np.ndarray:
    """Change speed and pitch like sox's `speed`. Factors above 1 are faster."""
    return samples if factor == 1.0 else resample(samples, factor, 1.0)


def require_factor(factor: float) -> float:
    if not factor > 0:
        raise UserError(f"data_aug_effects: factor must be above 0, such as 0.9, found {factor}")
    return factor


@dataclass(frozen=True)
class SpeedPerturb(Effect):
    """Change speed and pitch."""

    factor: Annotated[float, Range(0.01, 100)]

    def __post_init__(self) -> None:
        require_factor(self.factor)

    @property
    def stretch(self) -> float:
        return 1.0 / self.factor

    def __call__(self, samples: np.ndarray, _rate: int, _rng: np.random.Generator) -> np.ndarray:
        return change_speed(samples, self.factor)


@dataclass(frozen=True)
class Volume(Effect):
    """Apply a random gain between two limits (only in Tympan)."""

    low_db: Annotated[float, Range(-200, 200)] = -6.0
    high_db: Annotated[float, Range(-200, 200)] = 6.0

    def __call__(self, samples: np.ndarray, _rate: int, rng: np.random.Generator) -> np.ndarray:
        return np.asarray(samples * np.float32(10 ** (rng.uniform(self.low_db, self.high_db) / 20)))


@dataclass(frozen=True)
class WhiteNoise(Effect):
    """Add Gaussian noise at a random signal-to-noise ratio between two limits in dB (only in Tympan)."""

    max_snr: Annotated[float, Range(-200, 200)] = 40.0
    min_snr: Annotated[float, Range(-200, 200)] = 20.0

    def __call__(self, samples: np.ndarray, _rate: int, rng: np.random.Generator) -> np.ndarray:
        noise = rng.standard_normal(samples.shape, dtype=np.float32)
        snr = rng.uniform(self.min_snr, self.max_snr)
        power, own = float(np.mean(samples**2)), float(np.mean(noise**2))
        scale = np.float32(np.sqrt(power / max(own, 1e-10)) * 10 ** (-snr / 20))
        return np.asarray(samples + scale * noise)


@dataclass(frozen=True)
class Clipping(Effect):
    """Clip the samples at two quantiles."""

    min_quantile: Annotated[float, Range(0, 1)] = 0.0
    max_quantile: Annotated[float, Range(0, 1)] = 0.9

    def __post_init__(self) -> None:
        if self.min_quantile >= self.max_quantile:
            raise UserError(
                f"preprocessor_conf data_aug_effects: clipping: min_quantile {self.min_quantile:g} must be below "
                f"max_quantile {self.max_quantile:g}, or nothing of the audio is left"
            )

    def __call__(self, samples: np.ndarray, _rate: int, _rng: np.random.Generator) -> np.ndarray:
        low, high = np.quantile(samples, [self.min_quantile, self.max_quantile])
        return np.asarray(np.clip(samples, low, high))


@dataclass(frozen=True)
class Preemphasis(Effect):
    """Preemphasis: x[t] - coeff * x[t - 1]."""

    coeff: Annotated[float, Range(-1, 1)] = 0.97

    def __call__(self, samples: np.ndarray, _rate: int, _rng: np.random.Generator) -> np.ndarray:
        out: np.ndarray = samples.copy()
        out[1:] -= np.float32(self.coeff) * samples[:-1]
        return out


@dataclass(frozen=True)
class PolarityInverse(Effect):
    """Invert the sign of the samples."""

    def __call__(self, samples: np.ndarray, _rate: int, _rng: np.random.Generator) -> np.ndarray:
        return np.asarray(-samples)


@dataclass(frozen=True)
class Reverse(Effect):
    """Reverse the samples in time."""

    def __call__(self, samples: np.ndarray, _rate: int, _rng: np.random.Generator) -> np.ndarray:
        return np.ascontiguousarray(samples[::-1])


@dataclass(frozen=True)
class Contrast(Effect):
    """Increase the contrast like sox's `contrast`. An amount of 0 changes the samples too."""

    enhancement_amount: Annotated[float, Range(0, 100)] = 75.0

    def __post_init__(self) -> None:
        if not 0 <= self.enhancement_amount <= 100:
            found = self.enhancement_amount
            raise UserError(f"data_aug_effects: enhancement_amount must be between 0 and 100, found {found}")

    def __call__(self, samples: np.ndarray, _rate: int, _rng: np.random.Generator) -> np.ndarray:
        angle = samples * (np.pi / 2)
        return np.asarray(np.sin(angle + self.enhancement_amount / 750 * np.sin(angle * 4)))


@dataclass(frozen=True)
class BandwidthLimitation(Effect):
    """Resample to a lower sample rate and back. Methods have librosa's names, and are mapped to qualities of soxr."""

    res_type: Literal["random", "kaiser_best", "kaiser_fast", "scipy", "polyphase"] = "random"
    needs_rate: ClassVar[bool] = True

    def __call__(self, samples: np.ndarray, rate: int, rng: np.random.Generator) -> np.ndarray:
        lower = [other for other in _LOWER_RATES if other < rate]
        if not lower:
            return samples
        chosen = int(rng.choice(lower))
        method = str(rng.choice(list(_QUALITIES))) if self.res_type == "random" else self.res_type
        narrow = soxr.resample(samples, rate, chosen, quality=_QUALITIES[method])
        wide = soxr.resample(narrow, chosen, rate, quality=_QUALITIES[method])[: len(samples)]
        missing = [(0, len(samples) - len(wide)), *([(0, 0)] * (samples.ndim - 1))]
        return np.pad(wide, missing)
