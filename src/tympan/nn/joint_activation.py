"""Activation functions of a transducer's joint network, with ESPnet2's names and parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

JointActivation = Literal[
    "tanh", "relu", "selu", "swish", "hardtanh", "identity", "leaky_relu", "mish", "ftswish", "smish"
]


def joint_activation(
    kind: JointActivation,
    *,
    ftswish_threshold: float,
    ftswish_mean_shift: float,
    hardtanh_min_val: float,
    hardtanh_max_val: float,
    leakyrelu_neg_slope: float,
    smish_alpha: float,
    smish_beta: float,
    swish_beta: float,
) -> nn.Module:
    """The activation function of this name. Parameters of the other functions have no effect."""
    makers: dict[JointActivation, Callable[[], nn.Module]] = {
        "tanh": nn.Tanh,
        "relu": nn.ReLU,
        "selu": nn.SELU,
        "swish": lambda: ESwish(swish_beta) if swish_beta > 1 else nn.SiLU(),
        "hardtanh": lambda: nn.Hardtanh(hardtanh_min_val, hardtanh_max_val),
        "identity": nn.Identity,
        "leaky_relu": lambda: nn.LeakyReLU(leakyrelu_neg_slope),
        "mish": nn.Mish,
        "ftswish": lambda: FTSwish(threshold=ftswish_threshold, mean_shift=ftswish_mean_shift),
        "smish": lambda: Smish(alpha=smish_alpha, beta=smish_beta),
    }
    return makers[kind]()


class ESwish(nn.Module):
    """beta * x * sigmoid(x) (Alcaide 2018)."""

    def __init__(self, beta: float) -> None:
        super().__init__()
        self.beta = beta

    def forward(self, x: Tensor) -> Tensor:
        return self.beta * nn.functional.silu(x)


class FTSwish(nn.Module):
    """y = x * sigmoid(x) + threshold where y is at least 0, else `threshold`, minus `mean_shift`.

    This is ESPnet2's form of Flatten-T Swish (Chieng et al. 2018).
    """

    def __init__(self, *, threshold: float, mean_shift: float) -> None:
        super().__init__()
        self.threshold = threshold
        self.mean_shift = mean_shift

    def forward(self, x: Tensor) -> Tensor:
        lowered = nn.functional.silu(x) + self.threshold
        return lowered.where(lowered >= 0, self.threshold) - self.mean_shift


class Smish(nn.Module):
    """alpha * x * tanh(log(1 + sigmoid(beta * x))) (Wang et al. 2022). A parameter of 0 or less counts as 1."""

    def __init__(self, *, alpha: float, beta: float) -> None:
        super().__init__()
        self.alpha = alpha if alpha > 0 else 1.0
        self.beta = beta if beta > 0 else 1.0

    def forward(self, x: Tensor) -> Tensor:
        return self.alpha * x * torch.sigmoid(self.beta * x).log1p().tanh()
