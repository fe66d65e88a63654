"""ESPnet2's `data_aug_effects`: apply a weighted random choice of effects to a waveform.

The effects are classes in `tympan.config.choices.EFFECTS`; their parameters are the options.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tympan.config.choices import EFFECTS
from tympan.config.effects import read_effects
from tympan.data.waveform_effects import Effect


class Effects:
    """Applies `num[0]` to `num[1]` effects, chosen without replacement. A group in the list counts as one effect."""

    def __init__(self, effects: Sequence[object], num: tuple[int, int] = (1, 1)) -> None:
        groups = read_effects(effects, num)
        self.weights = [group.weight for group in groups]
        self.member_weights = [[member.weight for member in group.members] for group in groups]
        self.groups: list[list[Effect]] = [
            [EFFECTS.build(member.name, member.options) for member in group.members] for group in groups
        ]
        self.low, self.high = num

    @property
    def stretch(self) -> float:
        """Largest factor by which a waveform may become longer, if the slowest effects are chosen."""
        slowest = [max([1.0, *(effect.stretch for effect in group)]) for group in self.groups]
        return float(np.prod(sorted(slowest)[-self.high :]))

    @property
    def needs_rate(self) -> bool:
        return any(effect.needs_rate for group in self.groups for effect in group)

    def __call__(self, samples: np.ndarray, rate: int, rng: np.random.Generator) -> np.ndarray:
        if not len(samples):
            return samples
        number = int(rng.integers(self.low, self.high + 1))
        for chosen in _draw(self.weights, number, rng):
            effect = self.groups[chosen][_draw(self.member_weights[chosen], 1, rng)[0]]
            samples = effect(samples, rate, rng)
        return samples.astype(np.float32, copy=False)


def _draw(weights: Sequence[float], number: int, rng: np.random.Generator) -> list[int]:
    """Draw indices by weight, without replacement (Efraimidis and Spirakis 2006)."""
    keys = rng.random(len(weights)) ** (1.0 / np.asarray(weights, dtype=np.float64))
    return [int(index) for index in np.argsort(-keys)[:number]]
