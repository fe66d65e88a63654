"""The decoder of a configuration selects the model family; the hybrid model is the default."""

from __future__ import annotations

import pytest
from torch import nn

from tests.models.tiny import tiny_model
from tympan.models.hybrid import HybridModel


def test_the_decoder_chooses_the_family(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(tiny_model(), HybridModel)
    other = nn.Linear(1, 1)
    monkeypatch.setattr("tympan.models.build.FAMILIES", {"rnn": lambda config, *, reads_statistics: other})
    assert tiny_model(decoder="rnn", decoder_only={"hidden_size": 8}) is other
    assert isinstance(tiny_model(), HybridModel)
