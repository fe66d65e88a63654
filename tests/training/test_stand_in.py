"""A rank without utterances runs a dummy utterance. It uses every parameter, and its weight of 0 changes nothing."""

from __future__ import annotations

import math

import pytest
import torch

from tests.models.tiny import tiny_batch, tiny_model
from tympan.data.batch import Batch


@pytest.mark.parametrize(
    "conf",
    [
        {},
        {
            "encoder_conf": {"interctc_layer_idx": [1], "interctc_use_conditioning": True},
            "model_conf": {"interctc_weight": 0.5},
        },
        {"encoder_conf": {"input_layer": "linear"}},
        {"decoder": None, "model_conf": {"ctc_weight": 1.0}},
        {"model_conf": {"ctc_weight": 0.0}},
        {"specaug": "specaug", "specaug_conf": {"time_mask_width_range": [0, 5]}},
        {"normalize": "utterance_mvn"},
        {"input_size": None},
    ],
)
def test_a_model_runs_on_it_as_on_any_utterance(conf: dict[str, object]) -> None:
    model = tiny_model(**conf)
    tensors = tiny_batch()
    if model.frontend is not None:
        tensors = {**tensors, "speech": torch.zeros(4, 8000), "speech_lengths": torch.full((4,), 8000)}
    full = model(**tensors)
    empty = Batch(ids=(), tensors={name: tensor[:0] for name, tensor in tensors.items()}, global_size=4)
    model.zero_grad()
    batch = empty.or_stand_in()
    loss = model(**batch.tensors)
    assert (len(full.terms), set(full.stats)) == (len(loss.terms), set(loss.stats))
    assert math.isfinite(loss.value.item())
    (loss.value * 0.0).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.eq(0).all(), name


def test_utterances_are_left_as_they_are() -> None:
    batch = Batch(ids=("a", "b", "c", "d"), tensors=tiny_batch(), global_size=4)
    assert batch.or_stand_in() is batch
