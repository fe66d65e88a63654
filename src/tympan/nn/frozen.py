"""Frozen layers: faster decoding on a CPU with weights that no longer change.

A matrix product of few rows (ten hypotheses, the frames of a sentence) spends much of its time on the weight, which
torch's default library repacks in every call. oneDNN can use a weight that was packed once, and applies the activation
while the result is in the cache. Ten rows of a hidden layer took 0.10 ms instead of 0.19, and a hundred rows 0.66 ms
instead of 0.94 (two cores of an EPYC). The first call with a new number of rows costs about 0.5 ms.
"""

from __future__ import annotations

import functools
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn


@runtime_checkable
class Freezable(Protocol):
    """A module that does more than freezing each of its linear layers."""

    def freeze(self) -> None: ...


@runtime_checkable
class FreezesOnUse(Protocol):
    """A module that freezes some of its linear layers itself, on first use."""

    NOT_FROZEN: tuple[str, ...]
    """Their names."""


@runtime_checkable
class NeverFrozen(Protocol):
    """A module whose layers use their weights in ways that a frozen layer does not allow."""

    IS_NEVER_FROZEN: bool


class FrozenLinear(nn.Module):
    """activation(x @ weight.T + bias), with oneDNN's name of the activation: none, relu.

    The weight is stored in oneDNN's layout and is no longer a parameter.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, activation: str = "none") -> None:
        super().__init__()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)
        self.bias = None if bias is None else bias.detach()
        self.activation = activation
        self.out_features, self.in_features = weight.shape

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, self.activation, [], "")
        return out

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, activation={self.activation}"


class FrozenConv2d(nn.Module):
    """relu(conv(x)) for x (batch, channels, height, width); input and output are channels-last in memory."""

    def __init__(self, conv: nn.Conv2d, height: int, width: int) -> None:
        """`height`, `width`: the input size to optimize the weight layout for; other sizes work too."""
        super().__init__()
        self.shape = (list(conv.padding), list(conv.stride), list(conv.dilation), conv.groups)
        self.weight = torch.ops.aten.mkldnn_reorder_conv2d_weight(
            conv.weight.detach().to_mkldnn(), *self.shape, [1, conv.in_channels, height, width]
        )
        self.bias = None if conv.bias is None else conv.bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        out: Tensor = torch.ops.mkldnn._convolution_pointwise(x, self.weight, self.bias, *self.shape, "relu", [], "")
        return out


def freeze_linear(linear: nn.Linear, activation: str = "none") -> FrozenLinear:
    """Freeze a linear layer together with its activation."""
    return FrozenLinear(linear.weight, linear.bias, activation)


def freeze_together(*linears: nn.Linear) -> FrozenLinear:
    """Combine linear layers with the same input into one; their outputs are concatenated."""
    return FrozenLinear(torch.cat([one.weight for one in linears]), torch.cat([one.bias for one in linears]))


@functools.cache
def can_freeze() -> bool:
    """Whether this torch has oneDNN's prepacked matrix products (used by its compiler), and they give correct results.

    `tympan check_install` reports it. Without them decoding on a CPU is only slower.
    """
    linear, conv = nn.Linear(8, 5), nn.Conv2d(2, 4, 3, 2)
    rows, image = torch.ones(3, 8), torch.ones(1, 2, 9, 9)
    with torch.no_grad():
        try:
            found = freeze_linear(linear, "relu")(rows), FrozenConv2d(conv, 9, 9)(image)
        except (AttributeError, RuntimeError, TypeError):
            return False
        expected = linear(rows).relu(), conv(image).relu()
    return all(torch.allclose(one, other, atol=1e-4) for one, other in zip(found, expected, strict=True))


def freeze(model: nn.Module) -> bool:
    """Freeze all layers of a model that is only evaluated from now on. May be called again.

    Returns False if the model can't be frozen; it then works as before.

    Only for float32 on a CPU: torch has no such product for half precision and float64; other devices don't need it.
    """
    tensors = [*model.parameters(), *model.buffers()]
    is_plain = all(tensor.is_cpu and tensor.dtype != torch.float64 for tensor in tensors)
    weights = {tensor.dtype for tensor in model.parameters()}
    if not is_plain or weights != {torch.float32} or not can_freeze():
        return False
    for module in list(model.modules()):
        if isinstance(module, Freezable):
            module.freeze()
    kept = {inner for module in model.modules() if isinstance(module, NeverFrozen) for inner in module.modules()}
    for module in [module for module in model.modules() if module not in kept]:
        left_out = module.NOT_FROZEN if isinstance(module, FreezesOnUse) else ()
        for name, child in module.named_children():
            if type(child) is nn.Linear and name not in left_out:
                setattr(module, name, freeze_linear(child))
    return True
