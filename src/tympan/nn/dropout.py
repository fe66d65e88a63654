"""Dropout that is cheap on a CPU.

torch draws one Bernoulli variable an element there, in one thread: more time than the matrix product before it.
Here every 64-bit draw of the same generator decides four elements with 16 bits each. The rate is exact to 1/65536
and the scale is that of the rounded rate, so the expectation is kept. The masks follow from torch's generator and its
state alone (`torch.manual_seed`, `get_rng_state`), but are others than `torch.nn.functional.dropout` would draw.
Other devices have a parallel generator of their own and use torch's dropout.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_LEVELS = 1 << 16


class Dropout(nn.Module):
    """Zeroes a share `p` of the elements while training, and scales the others by 1 / (1 - p)."""

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"a dropout rate lies between 0 and 1, not {p}")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p, is_training=self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}"


def dropout(x: Tensor, p: float, *, is_training: bool) -> Tensor:
    """`x` with a share `p` of its elements zeroed and the rest scaled up; `x` itself when not training."""
    dropped_levels = round(p * _LEVELS)
    if not is_training or dropped_levels == 0:
        return x
    if not x.is_cpu or dropped_levels == _LEVELS:
        return F.dropout(x, p)
    return _Masked.apply(x, _draw_scaled_mask(x, dropped_levels))  # type: ignore[no-any-return]


class _Masked(torch.autograd.Function):
    """x * mask, without a gradient for the mask."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor) -> Tensor:
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors
        return grads[0] * mask, None


def _draw_scaled_mask(like: Tensor, dropped_levels: int) -> Tensor:
    """0 or 1 / (1 - rate) for every element of `like`, in its dtype."""
    draws = torch.empty((like.numel() + 3) // 4, dtype=torch.int64).random_(-(1 << 63), None)
    levels = draws.view(torch.int16)[: like.numel()].view(like.shape)
    kept = levels.ge(dropped_levels - _LEVELS // 2)
    return kept.to(like.dtype).mul_(_LEVELS / (_LEVELS - dropped_levels))
