"""Random values for options and parameters: one message, or a model that trains. Never a traceback, nan or a hang."""

from __future__ import annotations

import logging
import os
import warnings

import pytest

from tests.faults.config_mutations import TOKENS, Trial, make_trial

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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--input_size", "40"], "expects features (time, dim), but the data is audio"),
        (["--preencoder", "linear", "--preencoder_conf", "output_size=2"], "needs more than 2 values per frame"),
        (["--optim", "lbfgs", "--optim_conf", "line_search_fn=x"], "line_search_fn: must be null or strong_wolfe"),
    ],
)
def test_mistakes_that_show_only_when_a_model_is_built(options: list[str], message: str) -> None:
    arguments = ["--token_type", "char", "--token_list", str(TOKENS), "--encoder", "transformer", "--decoder", "rnn"]
    sizes = ["--encoder_conf", "{output_size: 16, num_blocks: 1, linear_units: 16, attention_heads: 2}"]
    outcome, what = Trial([*arguments, *sizes, "--normalize", "none", *options], []).run()
    assert outcome == "rejected"
    assert message in what
