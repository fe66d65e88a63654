"""Masks from lengths: True for valid positions."""

from __future__ import annotations

import torch
from torch import Tensor


def length_mask(lengths: Tensor, size: int) -> Tensor:
    """(batch, size) bool, True for positions before each length."""
    return torch.arange(size, device=lengths.device) < lengths.unsqueeze(1)


# Its exponential is 0, float16 can represent it, and a row without keys (an utterance of length 0) stays finite.
MASKED = -3.0e4


def key_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """(batch, 1, 1, keys): bias for attention scores, so that only keys of `mask` (batch, keys) count."""
    bias = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    return bias.masked_fill_(~mask, MASKED)[:, None, None, :]


def causal_bias(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """(size, size): bias for causal attention, so that a position attends to itself and earlier ones."""
    return torch.full((size, size), MASKED, dtype=dtype, device=device).triu_(1)


def apart(x: Tensor, mask: Tensor) -> Tensor:
    """(batch, slots, size): the frames x (batch, time, size) where `mask` (batch, slots) is True, zero elsewhere.

    There are as many slots as frames, unless a batch of one contains several concatenated utterances. Then the mask has
    empty slots between them, which act as padding for convolutions.
    """
    if mask.size(1) == x.size(1):
        return x * mask.unsqueeze(-1)
    return x.new_zeros(mask.size(1), x.size(2)).index_copy_(0, _places(mask), x[0]).unsqueeze(0)


def together(x: Tensor, mask: Tensor, time: int) -> Tensor:
    """(batch, time, size): the inverse of `apart`, for x (batch, slots, size) after a convolution."""
    return x if mask.size(1) == time else x[0].index_select(0, _places(mask)).unsqueeze(0)


def _places(mask: Tensor) -> Tensor:
    return mask[0].nonzero().squeeze(1)
