"""Dropout: rate, scale, gradient, reproducibility."""

from __future__ import annotations

import pytest
import torch

from tympan.nn.dropout import Dropout, dropout


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_rate_and_scale(rate: float) -> None:
    torch.manual_seed(0)
    out = torch.stack([dropout(torch.ones(1001), rate, is_training=True) for _ in range(1000)])
    dropped = out.eq(0).float().mean().item()
    # The rate of a call is one of the two neighbouring multiples of 1/256; this random choice adds to the deviation.
    deviation = (rate * (1 - rate) / out.numel()) ** 0.5 + 0.5 / 256 / 1000**0.5
    assert dropped == pytest.approx(rate, abs=4 * deviation)
    assert out.max().item() == pytest.approx(1 / (1 - rate), rel=0.04)
    assert out.mean().item() == pytest.approx(1.0, abs=0.02)
    of_one_call = out[0].mean() / out[0].max()
    assert of_one_call.item() == pytest.approx(out[0].ne(0).float().mean().item(), rel=1e-5)


def test_elements_are_independent_of_their_neighbours() -> None:
    torch.manual_seed(1)
    kept = dropout(torch.ones(400_000), 0.5, is_training=True).ne(0).float() - 0.5
    for distance in (1, 2, 3, 4, 8):
        assert abs((kept[:-distance] * kept[distance:]).mean().item()) < 2e-3


def test_gradient_is_that_of_the_mask() -> None:
    torch.manual_seed(2)
    x = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    out = dropout(x, 0.3, is_training=True)
    out.sum().backward()
    torch.testing.assert_close(x.grad * x.detach(), out.detach())

    def fixed(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        return dropout(x, 0.3, is_training=True)

    assert torch.autograd.gradcheck(fixed, (x,))


def test_follows_the_state_of_the_generator() -> None:
    x = torch.ones(1000)
    torch.manual_seed(4)
    state = torch.get_rng_state()
    first, second = (dropout(x, 0.1, is_training=True) for _ in range(2))
    assert not torch.equal(first, second)
    torch.set_rng_state(state)
    assert torch.equal(dropout(x, 0.1, is_training=True), first)


def test_nothing_happens_in_evaluation_or_at_rate_0() -> None:
    x = torch.ones(10)
    assert dropout(x, 0.5, is_training=False) is x
    assert Dropout(0.0)(x) is x
    assert dropout(x, 1.0, is_training=True).eq(0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_keeps_the_type(dtype: torch.dtype) -> None:
    assert dropout(torch.ones(10, dtype=dtype), 0.5, is_training=True).dtype == dtype
