"""Linear, SiLU, dropout, linear as one function for training on a CPU.

The hidden layer is eight times as wide as the model, so every extra pass over it is expensive. Activation and dropout
work in place, the scale of dropout is merged into the following product, and only what the gradients need is stored.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from tympan.nn.dropout import DropoutMask, draw_mask
from tympan.nn.typed_torch import Context, run_function


def can_fuse(x: Tensor) -> bool:
    """Whether this forward on a CPU uses the hand-written backward."""
    return torch.is_grad_enabled() and is_plain_on_cpu(x)


def is_plain_on_cpu(x: Tensor) -> bool:
    """Whether this is float32 (or float64) on a CPU, and not fused by torch.compile."""
    if torch.compiler.is_compiling():
        return False
    is_exact = x.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled(x.device.type)
    return x.is_cpu and is_exact


def fused_feed_forward(x: Tensor, first: nn.Linear, second: nn.Linear, dropout_rate: float) -> Tensor:
    """second(dropout(silu(first(x)))) for x (..., size)."""
    return run_function(_FeedForward, x, first.weight, first.bias, second.weight, second.bias, dropout_rate)


class _FeedForwardContext(Context, Protocol):
    mask_numbers: tuple[float, float] | None
    """Threshold and scale of the dropout mask."""


class _FeedForward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _FeedForwardContext, x: Tensor, w_1: Tensor, b_1: Tensor, w_2: Tensor, b_2: Tensor, rate: float
    ) -> Tensor:
        rows = x.reshape(-1, x.size(-1))
        hidden = torch.addmm(b_1, rows, w_1.t())
        active = torch.nn.functional.silu(hidden)
        mask = draw_mask(active, rate) if rate > 0 else None
        if mask is not None:
            mask.drop_(active)
        out = torch.addmm(b_2, active, w_2.t(), alpha=1.0 if mask is None else mask.scale)
        ctx.save_for_backward(rows, w_1, w_2, hidden, active, *(() if mask is None else (mask.levels,)))
        ctx.mask_numbers = None if mask is None else (mask.threshold, mask.scale)
        return out.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: _FeedForwardContext, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rows, w_1, w_2, hidden, active, *levels = ctx.saved_tensors
        grad = grads[0].reshape(-1, grads[0].size(-1))
        mask = None if ctx.mask_numbers is None else DropoutMask(levels[0], *ctx.mask_numbers)
        scaled = grad if mask is None else grad * mask.scale
        grad_hidden = scaled @ w_2
        if mask is not None:
            mask.drop_(grad_hidden)
        torch.ops.aten.silu_backward.grad_input(grad_hidden, hidden, grad_input=grad_hidden)
        grad_x = (grad_hidden @ w_1).view(*grads[0].shape[:-1], -1)
        return (
            grad_x,
            grad_hidden.t() @ rows,
            grad_hidden.sum(0),
            scaled.t() @ active,
            grad.sum(0),
            None,
        )
