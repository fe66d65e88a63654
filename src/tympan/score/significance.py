"""Confidence intervals of error rates, and significance of differences, by resampling utterances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tympan.errors import UserError
from tympan.score.result import ScoredUtterance, ScoreResult, shorten

ROWS_AT_ONCE = 200
"""Number of resamples drawn at a time: limits the memory to ROWS_AT_ONCE x utterances."""


@dataclass(frozen=True)
class Interval:
    """A confidence interval of an error rate, in percent."""

    low: float
    high: float
    level: float


@dataclass(frozen=True)
class Comparison:
    """Two hypotheses of the same references."""

    difference: float
    """Error rate of the second minus that of the first, in percentage points."""
    p_value: float
    """Two-sided: the probability of a difference this large by chance."""
    interval: Interval | None
    """Bootstrap interval of the difference; None for a single utterance."""

    def __str__(self) -> str:
        spread = f" ({self.interval.low:+.2f} to {self.interval.high:+.2f})" if self.interval else ""
        return f"{self.difference:+.2f} points{spread}, p = {self.p_value:.4f}"


def bootstrap_interval(
    result: ScoreResult, *, level: float = 0.95, resamples: int = 1000, seed: int = 0
) -> Interval | None:
    """Percentile bootstrap over utterances (Bisani and Ney, 2004); None for a single utterance."""
    return _interval([_per_utterance(result.utterances)], level=level, resamples=resamples, seed=seed)


def compare(
    first: ScoreResult, second: ScoreResult, *, level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> Comparison:
    """Matched-pairs permutation test, which swaps the two results of an utterance at random."""
    others = {utterance.id: utterance for utterance in second.utterances}
    ids = [utterance.id for utterance in first.utterances]
    if set(ids) != set(others):
        unpaired = sorted(set(ids) ^ set(others))
        raise UserError(
            f"the two hypotheses were scored on different utterances ({len(ids)} and {len(others)}) and cannot be "
            f"paired: only one of them has {shorten(unpaired)}"
        )
    # With alternatives in a reference, its number of words can differ per hypothesis.
    one, other = _per_utterance(first.utterances), _per_utterance([others[name] for name in ids])
    gaps = other - one
    difference = _rate(other.sum(0)) - _rate(one.sum(0))
    rng = np.random.default_rng(seed)
    extreme = 0
    for start in range(0, resamples, ROWS_AT_ONCE):
        is_swapped = rng.integers(0, 2, size=(min(ROWS_AT_ONCE, resamples - start), len(gaps)))
        moved = is_swapped @ gaps
        swapped = _rate(other.sum(0) - moved) - _rate(one.sum(0) + moved)
        extreme += int((np.abs(swapped) >= abs(difference) - 1e-9).sum())
    interval = _interval([one, other], level=level, resamples=resamples, seed=seed)
    return Comparison(float(difference), (extreme + 1) / (resamples + 1), interval)


def _per_utterance(utterances: Sequence[ScoredUtterance]) -> NDArray[np.float64]:
    """(utterances, 2): errors and words."""
    return np.array([(one.counts.errors, one.counts.words) for one in utterances], dtype=np.float64).reshape(-1, 2)


def _rate(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Percentage from sums (..., 2) of errors and words; without words as in `percent`."""
    errors, words = sums[..., 0], sums[..., 1]
    return np.where(words > 0, 100.0 * errors / np.maximum(words, 1), 100.0 * (errors > 0))


def _interval(counts: Sequence[NDArray[np.float64]], *, level: float, resamples: int, seed: int) -> Interval | None:
    """Interval of the rate of one system, or of the second minus the first; counts are (utterances, 2)."""
    utterances = len(counts[0])
    if utterances < 2:
        return None
    systems = [[np.ascontiguousarray(of_system[:, column]) for column in range(2)] for of_system in counts]
    rng = np.random.default_rng(seed)
    values = []
    for start in range(0, resamples, ROWS_AT_ONCE):
        rows = rng.integers(0, utterances, size=(min(ROWS_AT_ONCE, resamples - start), utterances))
        # One column at a time: pairs of numbers that are gathered from all over the memory take three times as long.
        rates = [_rate(np.stack([column[rows].sum(1) for column in columns], axis=-1)) for columns in systems]
        values.append(rates[-1] - rates[0] if len(rates) == 2 else rates[0])
    low, high = np.quantile(np.concatenate(values), [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high), level)
