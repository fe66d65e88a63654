"""How sure an error rate is, and whether two of them differ: resampling over utterances."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tympan.errors import UserError
from tympan.score.result import ScoreResult

ROWS_AT_ONCE = 200
"""Resamples drawn together: bounds the memory at ROWS_AT_ONCE x utterances."""


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
    """Error rate of the second minus that of the first, in percent points."""
    p_value: float
    """Two-sided: how often chance alone would make a difference this large."""
    interval: Interval | None
    """Bootstrap interval of the difference; None for a single utterance."""

    def __str__(self) -> str:
        spread = f" ({self.interval.low:+.2f} to {self.interval.high:+.2f})" if self.interval else ""
        return f"{self.difference:+.2f} points{spread}, p = {self.p_value:.4f}"


def bootstrap_interval(
    result: ScoreResult, *, level: float = 0.95, resamples: int = 1000, seed: int = 0
) -> Interval | None:
    """Percentile bootstrap over utterances (Bisani and Ney, 2004); None for one, which tells nothing of the spread."""
    errors, words = _per_utterance(result)
    return _interval(errors, words, level=level, resamples=resamples, seed=seed)


def compare(
    first: ScoreResult, second: ScoreResult, *, level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> Comparison:
    """Matched pairs: a permutation test that swaps the two results of an utterance at random."""
    ids = [utterance.id for utterance in first.utterances]
    others = {utterance.id: utterance for utterance in second.utterances}
    if set(ids) != set(others):
        raise UserError(f"{first.name} and {second.name} were scored on different utterances: they cannot be paired")
    errors, words = _per_utterance(first)
    other_errors = np.array([others[utterance].counts.errors for utterance in ids], dtype=np.float64)
    gaps = other_errors - errors
    observed = abs(gaps.sum())
    rng = np.random.default_rng(seed)
    extreme = 0
    for start in range(0, resamples, ROWS_AT_ONCE):
        signs = rng.integers(0, 2, size=(min(ROWS_AT_ONCE, resamples - start), len(gaps))) * 2 - 1
        extreme += int((np.abs(signs @ gaps) >= observed - 1e-9).sum())
    interval = _interval(gaps, words, level=level, resamples=resamples, seed=seed)
    difference = 100.0 * gaps.sum() / max(words.sum(), 1)
    return Comparison(float(difference), (extreme + 1) / (resamples + 1), interval)


def _per_utterance(result: ScoreResult) -> tuple[np.ndarray, np.ndarray]:
    errors = np.array([utterance.counts.errors for utterance in result.utterances], dtype=np.float64)
    words = np.array([utterance.counts.words for utterance in result.utterances], dtype=np.float64)
    return errors, words


def _interval(errors: np.ndarray, words: np.ndarray, *, level: float, resamples: int, seed: int) -> Interval | None:
    if len(errors) < 2:
        return None
    rng = np.random.default_rng(seed)
    rates = []
    for start in range(0, resamples, ROWS_AT_ONCE):
        rows = rng.integers(0, len(errors), size=(min(ROWS_AT_ONCE, resamples - start), len(errors)))
        rates.append(100.0 * errors[rows].sum(1) / np.maximum(words[rows].sum(1), 1))
    low, high = np.quantile(np.concatenate(rates), [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high), level)
