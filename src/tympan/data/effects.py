"""ESPnet2's `data_aug_effects`: a weighted choice of small changes to a waveform."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tympan.data.audio import resample
from tympan.errors import UserError

_EXAMPLE = '[0.3, "speed_perturb", {"factor": 0.9}]'


@dataclass(frozen=True)
class Effect:
    weight: float
    name: str
    options: dict[str, Any]


class Effects:
    """`num` (low, high) of the effects are drawn without replacement; of a group in the list, only one.

    An entry is [weight, name, options] or [weight, [entry, entry, ...]].
    """

    def __init__(self, effects: Sequence[object], num: tuple[int, int] = (1, 1)) -> None:
        self.groups = [_group(entry) for entry in effects]
        self.weights = [_weight_and_rest(entry)[0] for entry in effects]
        self.low, self.high = num
        if not 0 <= self.low <= self.high <= len(self.groups) or self.high < 1:
            raise UserError(f"data_aug_num {list(num)}: between 1 and the number of effects, {len(self.groups)}")

    @property
    def stretch(self) -> float:
        """How much longer a waveform may become: the slowest speed of each group, of as many as are drawn."""
        slowest = [
            max([1.0, *(1.0 / float(e.options["factor"]) for e in group if e.name == "speed_perturb")])
            for group in self.groups
        ]
        return float(np.prod(sorted(slowest)[-self.high :]))

    def __call__(self, samples: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        number = int(rng.integers(self.low, self.high + 1))
        for chosen in _draw(self.weights, number, rng):
            group = self.groups[chosen]
            effect = group[_draw([member.weight for member in group], 1, rng)[0]]
            samples = EFFECTS[effect.name](samples, rng, **effect.options)
        return samples.astype(np.float32, copy=False)


def change_speed(samples: np.ndarray, factor: float) -> np.ndarray:
    """Faster for factors above 1, with the pitch, as sox's `speed` does it."""
    return samples if factor == 1.0 else resample(samples, factor, 1.0)


def _speed_perturb(samples: np.ndarray, _rng: np.random.Generator, *, factor: float) -> np.ndarray:
    return change_speed(samples, factor)


def _volume(samples: np.ndarray, rng: np.random.Generator, *, low_db: float = -6.0, high_db: float = 6.0) -> np.ndarray:
    """Ours: a gain between two limits."""
    return np.asarray(samples * np.float32(10 ** (rng.uniform(low_db, high_db) / 20)))


def _white_noise(
    samples: np.ndarray, rng: np.random.Generator, *, max_snr: float = 40.0, min_snr: float = 20.0
) -> np.ndarray:
    noise = rng.standard_normal(samples.shape, dtype=np.float32)
    snr = rng.uniform(min_snr, max_snr)
    power, own = float(np.mean(samples**2)), float(np.mean(noise**2))
    scale = np.float32(np.sqrt(power / max(own, 1e-10)) * 10 ** (-snr / 20))
    return np.asarray(samples + scale * noise)


def _clipping(
    samples: np.ndarray, _rng: np.random.Generator, *, min_quantile: float = 0.0, max_quantile: float = 0.9
) -> np.ndarray:
    low, high = np.quantile(samples, [min_quantile, max_quantile])
    return np.asarray(np.clip(samples, low, high))


def _preemphasis(samples: np.ndarray, _rng: np.random.Generator, *, coeff: float = 0.97) -> np.ndarray:
    out: np.ndarray = samples.copy()
    out[1:] -= np.float32(coeff) * samples[:-1]
    return out


def _polarity_inverse(samples: np.ndarray, _rng: np.random.Generator) -> np.ndarray:
    return np.asarray(-samples)


def _reverse(samples: np.ndarray, _rng: np.random.Generator) -> np.ndarray:
    return np.ascontiguousarray(samples[::-1])


EFFECTS: dict[str, Callable[..., np.ndarray]] = {
    "speed_perturb": _speed_perturb,
    "volume": _volume,
    "white_noise": _white_noise,
    "clipping": _clipping,
    "preemphasis": _preemphasis,
    "polarity_inverse": _polarity_inverse,
    "reverse": _reverse,
}


def _draw(weights: Sequence[float], number: int, rng: np.random.Generator) -> list[int]:
    """Indices without replacement, likelier for larger weights (Efraimidis and Spirakis 2006)."""
    keys = rng.random(len(weights)) ** (1.0 / np.asarray(weights, dtype=np.float64))
    return [int(place) for place in np.argsort(-keys)[:number]]


def _weight_and_rest(entry: object) -> tuple[float, Sequence[object]]:
    if (
        not isinstance(entry, (list, tuple))
        or len(entry) < 2
        or not isinstance(entry[0], (int, float))
        or entry[0] <= 0
    ):
        raise UserError(f"data_aug_effects: an entry such as {_EXAMPLE} is expected, found {entry}")
    return float(entry[0]), entry[1:]


def _group(entry: object) -> tuple[Effect, ...]:
    weight, (first, *rest) = _weight_and_rest(entry)
    if isinstance(first, (list, tuple)):
        return tuple(effect for member in first for effect in _group(member))
    name, options = first, rest[0] if rest else {}
    if not isinstance(name, str) or name not in EFFECTS:
        raise UserError(f"data_aug_effects: effect '{name}' is unknown; choose from {', '.join(EFFECTS)}")
    if not isinstance(options, Mapping):
        raise UserError(f"data_aug_effects: the options of {name} must be a mapping as in {_EXAMPLE}, found {options}")
    allowed = _option_names(EFFECTS[name])
    unknown = set(options) - set(allowed)
    if unknown:
        raise UserError(
            f"data_aug_effects: {name} takes {', '.join(allowed) or 'no options'}, not {', '.join(unknown)}"
        )
    if name == "speed_perturb" and not float(options.get("factor", 0)) > 0:
        raise UserError(f"data_aug_effects: speed_perturb needs a factor, as in {_EXAMPLE}")
    return (Effect(weight, name, dict(options)),)


def _option_names(function: Callable[..., np.ndarray]) -> list[str]:
    return list(function.__kwdefaults__ or {}) or [n for n in function.__annotations__ if n == "factor"]
