"""The perplexity over batches, log intervals and ranks is that of all tokens together."""

from __future__ import annotations

import math

import pytest
import torch

from tympan.models.loss import PERPLEXITY, Stat
from tympan.runtime.comm import Solo
from tympan.training.reporter import EpochReporter


def test_perplexity_is_of_all_tokens_and_not_a_mean_of_perplexities() -> None:
    part = EpochReporter("valid", 1, comm=Solo())
    for total, count in ((6.0, 3), (2.0, 5)):
        stat = Stat(total=torch.tensor(total), count=torch.tensor(count))
        part.register({"loss": stat, PERPLEXITY: stat})
    assert part.means() == pytest.approx({"loss": 1.0, PERPLEXITY: math.e})


def test_a_loss_that_exploded_has_a_perplexity_too() -> None:
    part = EpochReporter("train", 1, comm=Solo())
    part.register({PERPLEXITY: Stat(total=torch.tensor(1e6), count=torch.tensor(1))})
    assert math.isfinite(part.means()[PERPLEXITY])
