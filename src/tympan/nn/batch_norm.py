"""Batch normalization whose statistics exclude padding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from tympan.nn.full_precision import at_least_float32


class MaskedBatchNorm1d(nn.BatchNorm1d):
    """torch's BatchNorm1d (with the same state dict) over the frames of a mask, for x (batch, time, channels).

    `reduce` is a differentiable sum over ranks, set by distributed training; None with one process.
    A rank without any frame takes part with zeros.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.reduce: Callable[[Tensor], Tensor] | None = None
        self.is_updating = True
        self.keeps_statistics = False
        """Use the stored statistics in training too, for a layer that is not trained."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
        """mask: (batch, time), True for valid frames."""
        is_measured = self.training and not self.keeps_statistics
        mean, variance = self._statistics(x, mask) if is_measured else (self.running_mean, self.running_var)
        assert mean is not None
        assert variance is not None
        scale = torch.rsqrt(at_least_float32(variance) + self.eps) * self.weight
        shift = self.bias - mean * scale
        return torch.addcmul(shift.to(x.dtype), x, scale.to(x.dtype))

    def _statistics(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance over all ranks, from one reduction.

        Sums are taken relative to the running mean, so that the variance is not lost to rounding.
        """
        assert self.running_mean is not None
        center = at_least_float32(self.running_mean)
        centered = (at_least_float32(x) - center) * mask.unsqueeze(-1)
        frames = mask.sum().to(centered.dtype).view(1)
        sums = torch.cat([centered.sum((0, 1)), centered.square().sum((0, 1)), frames])
        if self.reduce is not None:
            sums = self.reduce(sums)
        total, total_square, count = torch.split(sums, [self.num_features, self.num_features, 1])
        share = 1.0 / count.clamp(min=1.0)
        offset = total * share
        mean, variance = center + offset, (total_square * share - offset.square()).clamp(min=0.0)
        if self.is_updating:
            self._update(mean.detach(), variance.detach(), count.detach())
        return mean, variance

    @torch.no_grad()
    def _update(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        momentum = (0.0 if self.momentum is None else self.momentum) * (count > 0)
        unbiased = variance * (count / (count - 1.0).clamp(min=1.0))
        # A step that is skipped because of non-finite values must not change the statistics.
        mean = torch.where(mean.isfinite(), mean, self.running_mean)
        unbiased = torch.where(unbiased.isfinite(), unbiased, self.running_var)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum.to(self.running_mean.dtype))
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), momentum.to(self.running_var.dtype))


def keep_statistics(model: nn.Module) -> list[str]:
    """Let each batch norm whose weight is not trained use its stored statistics. Returns the names of these layers.

    Otherwise the frozen layers above it would get other inputs in training than after it.
    """
    names = []
    for name, norm in model.named_modules():
        if isinstance(norm, MaskedBatchNorm1d):
            norm.keeps_statistics = not norm.weight.requires_grad and not norm.bias.requires_grad
            names += [name] if norm.keeps_statistics else []
    return names


@contextmanager
def frozen_statistics(module: nn.Module) -> Iterator[None]:
    """Do not update the running statistics of `module` in this context: for a second forward of the same batch."""
    norms = [child for child in module.modules() if isinstance(child, MaskedBatchNorm1d)]
    for norm in norms:
        norm.is_updating = False
    try:
        yield
    finally:
        for norm in norms:
            norm.is_updating = True
