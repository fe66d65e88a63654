"""The fused feed-forward equals the layers one by one, with the same mask and the same gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tympan.nn.activation import get_activation
from tympan.nn.dropout import _Drop, draw_mask
from tympan.nn.feed_forward import PositionwiseFeedForward
from tympan.nn.fused_feed_forward import can_fuse, fused_feed_forward


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_values_and_gradients(rate: float) -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(6, 10).double(), nn.Linear(10, 6).double()
    x = torch.randn(3, 4, 6, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(1)
    fused = fused_feed_forward(x, first, second, rate)
    weights = torch.randn_like(fused)
    found = torch.autograd.grad((fused * weights).sum(), [x, *first.parameters(), *second.parameters()])

    torch.manual_seed(1)
    hidden = nn.functional.silu(first(x))
    if rate > 0:
        mask = draw_mask(hidden.flatten(0, 1), rate)
        hidden = _Drop.apply(hidden, mask.levels.view(hidden.shape), mask.threshold, mask.scale)
        assert hidden.eq(0).any()
    expected = second(hidden)
    torch.testing.assert_close(fused, expected)
    for one, other in zip(
        found,
        torch.autograd.grad((expected * weights).sum(), [x, *first.parameters(), *second.parameters()]),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_training_and_evaluation_agree_without_dropout() -> None:
    torch.manual_seed(0)
    layer = PositionwiseFeedForward(6, 10, 0.0, get_activation("swish"))
    x = torch.randn(2, 3, 6)
    assert can_fuse(x)
    torch.testing.assert_close(layer(x), layer.eval()(x))


def test_autocast_takes_the_plain_layers() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not can_fuse(torch.randn(2, 3))
