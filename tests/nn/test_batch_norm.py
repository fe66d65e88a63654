"""Masked batch normalization equals torch's over the valid frames."""

from __future__ import annotations

import torch
from torch import nn

from tympan.nn.batch_norm import MaskedBatchNorm1d, frozen_statistics

LENGTHS = (9, 4, 6)


def make_pair() -> tuple[MaskedBatchNorm1d, nn.BatchNorm1d]:
    torch.manual_seed(0)
    reference = nn.BatchNorm1d(5).double()
    nn.init.normal_(reference.weight)
    nn.init.normal_(reference.bias)
    masked = MaskedBatchNorm1d(5).double()
    masked.load_state_dict(reference.state_dict())
    return masked, reference


def make_batch() -> tuple[torch.Tensor, torch.Tensor]:
    mask = torch.arange(9) < torch.tensor(LENGTHS).unsqueeze(1)
    x = torch.randn(3, 9, 5, dtype=torch.float64) * 3 + 100
    return torch.where(mask.unsqueeze(-1), x, 1e6), mask


def test_training_equals_batch_norm_of_the_frames_alone() -> None:
    masked, reference = make_pair()
    for _ in range(3):
        x, mask = make_batch()
        x.requires_grad_()
        rows = x.detach()[mask].requires_grad_()
        out, expected = masked(x, mask), reference(rows)
        torch.testing.assert_close(out[mask], expected)
        weights = torch.randn_like(expected)
        (out[mask] * weights).sum().backward()
        (expected * weights).sum().backward()
        torch.testing.assert_close(x.grad[mask], rows.grad)
        assert x.grad[~mask].eq(0).all()
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(masked.state_dict()[name], value)
    torch.testing.assert_close(masked.weight.grad, reference.weight.grad)
    torch.testing.assert_close(masked.bias.grad, reference.bias.grad)


def test_evaluation_equals_batch_norm() -> None:
    masked, reference = make_pair()
    x, mask = make_batch()
    masked(x, mask)
    reference.load_state_dict(masked.state_dict())
    masked.eval()
    reference.eval()
    torch.testing.assert_close(masked(x, mask)[mask], reference(x[mask]))


def test_ranks_together_equal_one_process() -> None:
    """Two "ranks" exchange sums as in training; the second one has no frames."""
    one, _ = make_pair()
    other, _ = make_pair()
    x, mask = make_batch()
    sums: list[torch.Tensor] = []

    def record(values: torch.Tensor) -> torch.Tensor:
        sums.append(values)
        return values

    empty, _ = make_pair()
    empty.reduce = record
    out = empty(torch.zeros(1, 4, 5, dtype=torch.float64), torch.zeros(1, 4, dtype=torch.bool))
    assert out.isfinite().all()
    assert torch.equal(empty.running_mean, torch.zeros(5, dtype=torch.float64))
    other.reduce = lambda values: values + sums[0]
    torch.testing.assert_close(other(x, mask)[mask], one(x, mask)[mask])
    torch.testing.assert_close(other.running_var, one.running_var)


def test_statistics_can_be_frozen() -> None:
    masked, _ = make_pair()
    x, mask = make_batch()
    first = masked(x, mask)
    before = {name: value.clone() for name, value in masked.state_dict().items()}
    with frozen_statistics(masked):
        again = masked(x, mask)
    assert all(torch.equal(before[name], value) for name, value in masked.state_dict().items())
    torch.testing.assert_close(first, again)
    masked(x, mask)
    assert not torch.equal(before["running_mean"], masked.running_mean)
