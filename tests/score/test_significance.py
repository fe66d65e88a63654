"""Confidence intervals and the paired test, on data with known results."""

from __future__ import annotations

import numpy as np
import pytest

from tympan.score.result import ScoreResult, score
from tympan.score.significance import bootstrap_interval, compare
from tympan.score.transcripts import Transcript


def result_with_errors(errors: np.ndarray, words: int = 10) -> ScoreResult:
    """Utterances of `words` tokens, with the given number of substitutions in each."""
    references = [Transcript(f"u{n}", "s", ("a",) * words) for n in range(len(errors))]
    heard = [Transcript(f"u{n}", "s", ("b",) * int(e) + ("a",) * (words - int(e))) for n, e in enumerate(errors)]
    return score(references, heard, name="hyp")


def test_interval_matches_the_normal_approximation() -> None:
    errors = np.random.default_rng(1).binomial(10, 0.2, size=400)
    interval = bootstrap_interval(result_with_errors(errors))
    spread = 1.96 * 10 * errors.std() / 400**0.5
    assert interval.high - interval.low == pytest.approx(2 * spread, rel=0.1)
    assert interval.low < 10 * errors.mean() < interval.high


def test_equal_results_do_not_differ() -> None:
    errors = np.random.default_rng(2).binomial(10, 0.2, size=50)
    comparison = compare(result_with_errors(errors), result_with_errors(errors))
    assert (comparison.difference, comparison.p_value) == (0.0, 1.0)


def test_a_clear_difference_is_found_and_a_small_one_is_not() -> None:
    rng = np.random.default_rng(3)
    errors = rng.binomial(8, 0.3, size=200)
    worse = compare(result_with_errors(errors), result_with_errors(errors + 1))
    assert worse.difference == pytest.approx(10.0)
    assert worse.p_value < 0.001
    shuffled = errors.copy()
    shuffled[:10] = errors[:10][::-1]
    assert compare(result_with_errors(errors), result_with_errors(shuffled)).p_value > 0.5
