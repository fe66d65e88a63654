"""The range of the numbers that an option or a parameter accepts.

Options: `option(0.1, help=..., least=0, most=1)`. Parameters of a class that a configuration names:
`dropout_rate: Annotated[float, Range(0, below=1)] = 0.1`. Numbers without a declared range must be finite.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

LARGEST = 2**63 - 1
"""Whole numbers above this overflow in the libraries that Tympan uses."""
SMALLEST = 1e-37
"""float32 has no normal numbers closer to 0: a learning rate such as 1e-320 becomes 0."""


@dataclass(frozen=True)
class Range:
    """At least `least` or above `above`, at most `most` or below `below`. nan is never inside, inf only if allowed.

    Numbers that are too small for float32 are never inside.

    For lists and mappings it applies to every number in them.
    """

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    allows_inf: bool = False

    def fault(self, value: Any) -> str | None:
        """Describe the first number in `value` that is outside of the range; None if there is none."""
        for number in _numbers(value):
            if not self._holds(number):
                is_huge = isinstance(number, int) and abs(number) > LARGEST and self.most is None and self.below is None
                words = "a number of at most 18 digits" if is_huge else str(self) or "a finite number"
                return f"must be {words}, found {_shown(number)}"
            if 0 < abs(number) < SMALLEST:
                return f"must be 0 or at least {SMALLEST:g} away from 0 (too small for float32), found {number}"
        return None

    def __str__(self) -> str:
        """The range in words: `at least 1`, `between 0 and 1`, `above 0`; empty if every finite number is inside."""
        if self.least is not None and self.most is not None:
            return f"between {_shown(self.least)} and {_shown(self.most)}{', or inf' if self.allows_inf else ''}"
        words = {"at least": self.least, "above": self.above, "at most": self.most, "below": self.below}
        bounds = [f"{word} {_shown(bound)}" for word, bound in words.items() if bound is not None]
        return " and ".join(bounds)

    def __bool__(self) -> bool:
        return any(bound is not None for bound in (self.least, self.most, self.above, self.below))

    def _holds(self, number: float) -> bool:
        if number == math.inf:
            return self.allows_inf
        if isinstance(number, int) and abs(number) > LARGEST:
            return False
        if math.isnan(number) or (number == -math.inf and not self.allows_inf):
            return False
        return (
            (self.least is None or number >= self.least)
            and (self.most is None or number <= self.most)
            and (self.above is None or number > self.above)
            and (self.below is None or number < self.below)
        )


FINITE = Range()


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _numbers(item)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield value


def _shown(number: float) -> str:
    if isinstance(number, int):
        if abs(number) > LARGEST:
            return f"a number of about {number.bit_length() * 3 // 10} digits"
        return str(number) if abs(number) < 10**15 else f"{number:g}"
    return f"{number:g}" if number == round(number, 5) else str(number)
