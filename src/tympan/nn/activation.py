"""Activation functions by ESPnet2's names."""

from __future__ import annotations

from torch import nn

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "hardtanh": nn.Hardtanh,
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "selu": nn.SELU,
    "swish": nn.SiLU,
    "gelu": nn.GELU,
    "sigmoid": nn.Sigmoid,
    "identity": nn.Identity,
}


def get_activation(name: str) -> nn.Module:
    """The activation module with this name; the signatures of the callers list the allowed names."""
    return ACTIVATIONS[name]()
