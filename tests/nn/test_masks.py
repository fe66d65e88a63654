"""The inverse of `apart` restores the frames."""

from __future__ import annotations

import torch

from tympan.nn.masks import apart, length_mask, together


def test_padding_becomes_zero() -> None:
    x, mask = torch.ones(2, 3, 4), length_mask(torch.tensor([3, 1]), 3)
    spread = apart(x, mask)
    assert spread[:, :, 0].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert together(spread, mask, x.size(1)) is spread


def test_utterances_behind_one_another_get_zeros_between() -> None:
    x, mask = torch.arange(1.0, 6.0).view(1, 5, 1), torch.tensor([[True, True, False, False, True, False, True, True]])
    spread = apart(x, mask)
    assert spread.flatten().tolist() == [1, 2, 0, 0, 3, 0, 4, 5]
    torch.testing.assert_close(together(spread, mask, x.size(1)), x)
