"""Dropout that is fast on a CPU.

There torch draws one Bernoulli variable per element in one thread, which is slower than the preceding matrix product.
Here every 64-bit draw of the same generator decides eight elements, with 8 bits each: one of 256 "levels". If the rate
is not a multiple of 1/256, each call randomly uses the level above or below it, so that the mean rate is exact. Kept
elements are scaled by the rate of that call, so that the expectation is exact too. The masks depend only on torch's
generator (`torch.manual_seed`, `get_rng_state`), but differ from those of `torch.nn.functional.dropout`.

Other devices have a parallel generator and use torch's dropout; so does `torch.compile`, which fuses it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tympan.nn.typed_torch import Context, run_function


class Dropout(nn.Module):
    """Zero a fraction `p` of the elements during training, and scale the others by 1 / (1 - p)."""

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"the dropout rate must be between 0 and 1, but it is {p}")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p, is_training=self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}"


def dropout(x: Tensor, p: float, *, is_training: bool) -> Tensor:
    """`x` with a fraction `p` of its elements zeroed and the rest scaled up; `x` itself when not training."""
    if not is_training or p == 0.0:
        return x
    if not x.is_cpu or p > 0.99 or torch.compiler.is_compiling():
        return F.dropout(x, p)
    mask = draw_mask(x, p)
    return run_function(_Drop, x, mask.levels, mask.threshold, mask.scale)


@dataclass(frozen=True)
class DropoutMask:
    """Elements whose level is above the threshold are kept and scaled."""

    levels: Tensor  # int8, with the shape of the input
    threshold: float
    scale: float

    def drop_(self, x: Tensor) -> Tensor:
        """Zero the dropped elements of `x` in place, without scaling. One pass over memory."""
        levels = self.levels.to(x.dtype)
        torch.ops.aten.threshold_backward.grad_input(x, levels, self.threshold, grad_input=x)
        return x


def draw_mask(like: Tensor, p: float) -> DropoutMask:
    """A mask for a tensor of this shape, from torch's CPU generator."""
    number = int(p * 256)
    number += int(torch.rand((), dtype=torch.float64).item() < p * 256 - number)
    draws = torch.empty((like.numel() + 7) // 8, dtype=torch.int64).random_(-(1 << 63), None)
    levels = draws.view(torch.int8)[: like.numel()].view(like.shape)
    return DropoutMask(levels, number - 128 - 0.5, 256 / (256 - number))


class _DropContext(Context, Protocol):
    threshold: float
    scale: float


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _DropContext, x: Tensor, levels: Tensor, threshold: float, scale: float) -> Tensor:
        ctx.save_for_backward(levels)
        ctx.threshold, ctx.scale = threshold, scale
        return _kept(x, levels, threshold).mul_(scale)

    @staticmethod
    def backward(ctx: _DropContext, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (levels,) = ctx.saved_tensors
        return _kept(grads[0], levels, ctx.threshold).mul_(ctx.scale), None, None, None


def _kept(x: Tensor, levels: Tensor, threshold: float) -> Tensor:
    """`x` where the level is above the threshold, 0 elsewhere."""
    out: Tensor = torch.ops.aten.threshold_backward(x, levels.to(x.dtype), threshold)
    return out
