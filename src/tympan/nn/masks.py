"""Masks from lengths: True where a position holds data."""

from __future__ import annotations

import torch
from torch import Tensor


def length_mask(lengths: Tensor, size: int) -> Tensor:
    """(batch, size) bool, True before each length."""
    return torch.arange(size, device=lengths.device) < lengths.unsqueeze(1)


# Its exponential is 0, float16 can hold it, and a row without any key (an utterance of length 0) stays finite.
MASKED = -3.0e4


def key_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """(batch, 1, 1, keys): what to add to attention scores so that only keys of `mask` (batch, keys) count."""
    bias = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    return bias.masked_fill_(~mask, MASKED)[:, None, None, :]


def causal_bias(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """(size, size): what to add so that a position sees itself and what came before."""
    return torch.full((size, size), MASKED, dtype=dtype, device=device).triu_(1)
