"""Recurrent layers in half precision."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tympan.models.decoder.prediction import RnnPrediction
from tympan.models.lm.seq_rnn import SequentialRnnLm
from tympan.nn.rnn import build_rnn

Made = Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]


def encoder() -> tuple[nn.Module, tuple[Tensor, ...]]:
    rnn = build_rnn(
        "lstm", use_projection=True, input_size=8, hidden_size=8, output_size=8, num_layers=1, is_bidirectional=True,
        dropout_rate=0.0, subsample=[1],
    )  # fmt: skip
    return rnn, (torch.randn(2, 5, 8), torch.tensor([5, 5]))


def language_model() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return SequentialRnnLm(vocab_size=6, unit=8, nlayers=1), (torch.tensor([[1, 2, 3]]),)


def prediction() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return RnnPrediction(vocab_size=6, hidden_size=8), (torch.tensor([[0, 1, 2]]),)


@pytest.mark.parametrize("make", [encoder, language_model, prediction])
def test_an_lstm_is_trained_in_float16_autocast(make: Made) -> None:
    """oneDNN has no such LSTM with float32 weights."""
    module, inputs = make()
    with torch.autocast("cpu", dtype=torch.float16):
        found = module(*inputs)
    exact = module(*inputs)
    for half, full in zip(_tensors(found), _tensors(exact), strict=True):
        torch.testing.assert_close(half.float(), full.float(), atol=5e-3, rtol=5e-3)
    _tensors(found)[0].float().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for n, p in module.named_parameters() if "weight_hh" in n)


def _tensors(found: Tensor | tuple[Tensor, ...]) -> list[Tensor]:
    return [found] if isinstance(found, Tensor) else [item for item in found if isinstance(item, Tensor)]
