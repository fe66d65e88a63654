"""Random values for options and parameters: one message, or a model that trains. Never a traceback, nan or a hang."""

from __future__ import annotations

import logging
import os
import warnings

import pytest

from tests.faults.config_mutations import make_trial

TRIALS = int(os.environ.get("TYMPAN_TRIALS", "200"))


@pytest.fixture(autouse=True)
def quiet() -> None:
    logging.getLogger().setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore")


def faults(numbers: range) -> list[str]:
    found = []
    for number in numbers:
        trial = make_trial(number)
        outcome, what = trial.run()
        if outcome not in ("rejected", "accepted"):
            found.append(f"trial {number} ({', '.join(trial.changed)}): {outcome}: {what}")
    return found


@pytest.mark.parametrize("part", range(4))
def test_random_values(part: int) -> None:
    assert faults(range(part * 25, part * 25 + 25)) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(10))
def test_many_random_values(part: int) -> None:
    """2,000 configurations. `make soak` sets a larger number."""
    first = 1000 + part * TRIALS
    assert faults(range(first, first + TRIALS)) == []
