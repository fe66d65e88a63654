"""Initialization of a model's parameters: ESPnet2's `--init`."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from tympan.errors import UserError

InitKind = Literal[
    "pytorch", "xavier_uniform", "xavier_normal", "kaiming_uniform", "kaiming_normal", "normal", "chainer", "uniform",
    "none",
]  # fmt: skip

_WEIGHTS: dict[str, Callable[[Tensor], object]] = {
    "xavier_uniform": nn.init.xavier_uniform_,
    "xavier_normal": nn.init.xavier_normal_,
    "kaiming_uniform": lambda weight: nn.init.kaiming_uniform_(weight, nonlinearity="relu"),
    "kaiming_normal": lambda weight: nn.init.kaiming_normal_(weight, nonlinearity="relu"),
    "normal": lambda weight: nn.init.normal_(weight, std=0.02),
    "chainer": lambda weight: nn.init.normal_(weight, std=1.0 / math.sqrt(weight[0].numel())),
}
_OWN_DEFAULT = (nn.Embedding, nn.LayerNorm, nn.GroupNorm, nn.BatchNorm1d)


@runtime_checkable
class ResetsItself(Protocol):
    """A module with its own initialization, independent of the model's."""

    def reset_own_parameters(self) -> None: ...


@runtime_checkable
class LoadsPretrained(Protocol):
    """A part whose weights somebody else trained."""

    def load_pretrained(self) -> None:
        """Fill in these weights, from a file or a download."""
        ...


def load_pretrained_parts(model: nn.Module, *, loaded: Collection[str] = ()) -> bool:
    """Fill in the weights of pretrained parts. Call it after `initialize`, and not if other weights follow.

    A part is skipped if the names of all its weights are in `loaded`: its files are not needed then. Returns whether
    any part was filled.
    """
    is_filled = False
    for prefix, part in model.named_modules():
        start = f"{prefix}." if prefix else ""
        is_loaded = all(f"{start}{name}" in loaded for name, _ in part.named_parameters())
        if isinstance(part, LoadsPretrained) and not is_loaded:
            try:
                part.load_pretrained()
            except UserError as error:
                option = f"{prefix.partition('.')[0]}_conf"
                raise (error if option in str(error) else UserError(f"{option}: {error}")) from error
            is_filled = True
    return is_filled


@torch.no_grad()
def initialize(model: nn.Module, kind: InitKind | None) -> None:
    """Initialize the parameters in place; `pytorch`, `none` and None keep the layers' own initialization.

    Weights are drawn from the distribution, biases are 0. Embeddings and normalization layers keep torch's default, and
    modules with `reset_own_parameters` their own. Differs from ESPnet2, which here sets the weights of batch
    normalization (with `chainer`, of all normalization layers) to 0. `uniform` is that of ESPnet1's RNN language model:
    all parameters, also biases and embeddings, are drawn from [-0.1, 0.1].
    """
    if kind in (None, "pytorch", "none"):
        return
    if kind == "uniform":
        for parameter in model.parameters():
            parameter.uniform_(-0.1, 0.1)
        return
    for parameter in model.parameters():
        if parameter.dim() > 1:
            _WEIGHTS[kind](parameter)
        elif parameter.dim() == 1:
            parameter.zero_()
    for module in model.modules():
        if isinstance(module, _OWN_DEFAULT):
            module.reset_parameters()
        if kind == "chainer" and isinstance(module, nn.LSTM | nn.LSTMCell):
            _open_forget_gates(module)
        if isinstance(module, ResetsItself):
            module.reset_own_parameters()


def _open_forget_gates(module: nn.Module) -> None:
    """The order of the gates is input, forget, cell, output. A cell's recurrent bias stays 0, as in ESPnet2."""
    names = ["bias_ih"] if isinstance(module, nn.LSTMCell) else [n for n, _ in module.named_parameters() if "bias" in n]
    for name in names:
        bias = getattr(module, name)
        bias[bias.numel() // 4 : bias.numel() // 2] = 1.0
