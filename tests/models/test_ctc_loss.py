"""The CTC loss over each transcript's tokens equals torch's over the vocabulary, gradient included."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tympan.models.ctc_loss import ctc_loss

LENGTHS = torch.tensor([12, 9, 3, 12, 5])
TEXT = torch.tensor([[3, 3, 4, 3], [1, 2, 1, 2], [5, 5, 5, 0], [2, 0, 0, 0], [6, 6, 6, 6]])
TEXT_LENGTHS = torch.tensor([4, 4, 3, 1, 0])  # the third does not fit: 3 tokens, 2 repeats, 3 frames


@pytest.mark.parametrize("zero_infinity", [True, False])
@pytest.mark.parametrize("blank_id", [0, 7])
def test_equals_torch(zero_infinity: bool, blank_id: int) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(5, 12, 8, generator=generator, dtype=torch.float64) * 3).requires_grad_()
    text = TEXT.clamp(min=1)
    rows = slice(None) if zero_infinity else torch.tensor([0, 1, 3, 4])
    weights = torch.rand(5, generator=generator, dtype=torch.float64)[rows]
    found = ctc_loss(logits, LENGTHS, text, TEXT_LENGTHS, blank_id=blank_id, zero_infinity=zero_infinity)[rows]
    expected = F.ctc_loss(
        logits.log_softmax(-1).transpose(0, 1),
        text,
        LENGTHS,
        TEXT_LENGTHS,
        blank=blank_id,
        reduction="none",
        zero_infinity=zero_infinity,
    )[rows]
    torch.testing.assert_close(found, expected)
    if zero_infinity:
        assert found[2] == 0
    (grad,) = torch.autograd.grad((found * weights).sum(), logits)
    (expected_grad,) = torch.autograd.grad((expected * weights).sum(), logits)
    torch.testing.assert_close(grad[rows], expected_grad[rows])


def test_without_gradient() -> None:
    logits = torch.randn(5, 12, 8)
    with torch.no_grad():
        losses = ctc_loss(logits, LENGTHS, TEXT.clamp(min=1), TEXT_LENGTHS, blank_id=0, zero_infinity=True)
    assert losses.shape == (5,)
    assert not losses.requires_grad
