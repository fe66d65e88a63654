"""Low-rank adapters (LoRA, https://arxiv.org/abs/2106.09685), with ESPnet2's names of options and parameters.

A saved model holds the adapted weight W + scale * B A under the layer's own name, as ESPnet2 saves it, and A and B
beside it. So the file can also be loaded as a model without adapters. Only the checkpoint holds W itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, ClassVar, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tympan.config.range import Range
from tympan.errors import UserError
from tympan.nn.dropout import Dropout

SaveStrategy = Literal["all", "adapter_only", "required_grad_only"]
_A, _B = ".lora_A", ".lora_B"
_HOULSBY = ".houlsby_adapter."


class Adapter(Protocol):
    """A kind of adapter, made from `adapter_conf`."""

    MERGES: ClassVar[bool]
    """Whether the adapters can be merged into the weights of the layers, so that a loaded model has none."""
    scale: float
    """Factor of a merged adapter."""

    def add_to(self, model: nn.Module, *, freezes: bool, also_train: Sequence[str] = ()) -> list[str]:
        """Put adapters into the model, in place; returns the names of the adapted layers.

        `freezes`: only the adapters are trained, and the parameters below the prefixes of `also_train`.
        """
        ...


class LoraLinear(nn.Linear):
    """A linear layer plus `scale` times B A, where A is (rank, inputs) and B is (outputs, rank), zero at first."""

    def __init__(self, layer: nn.Linear, *, rank: int, scale: float, dropout_rate: float) -> None:
        super().__init__(layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta")
        self.weight, self.bias = layer.weight, layer.bias
        self.scale = scale
        self.lora_A = nn.Parameter(layer.weight.new_empty(rank, layer.in_features))
        self.lora_B = nn.Parameter(layer.weight.new_zeros(layer.out_features, rank))
        self.dropout = Dropout(dropout_rate)
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        low = F.linear(F.linear(self.dropout(x), self.lora_A), self.lora_B)
        return F.linear(x, self.weight, self.bias) + low * self.scale


class LoraEmbedding(nn.Embedding):
    """An embedding plus `scale` times (B A)^T, where A is (rank, tokens), zero at first, and B is (size, rank)."""

    def __init__(self, layer: nn.Embedding, *, rank: int, scale: float) -> None:
        super().__init__(layer.num_embeddings, layer.embedding_dim, padding_idx=layer.padding_idx, device="meta")
        self.weight = layer.weight
        self.scale = scale
        self.lora_A = nn.Parameter(layer.weight.new_zeros(rank, layer.num_embeddings))
        self.lora_B = nn.Parameter(layer.weight.new_empty(layer.embedding_dim, rank))
        nn.init.normal_(self.lora_B)

    def forward(self, tokens: Tensor) -> Tensor:
        low = F.embedding(tokens, self.lora_A.t(), self.padding_idx)
        return super().forward(tokens) + F.linear(low, self.lora_B) * self.scale


class Lora:
    """The adapter `lora`: its parameters are the keys of `adapter_conf`."""

    MERGES: ClassVar[bool] = True

    def __init__(
        self,
        rank: Annotated[int, Range(1, 10000)] = 8,
        alpha: Annotated[int, Range(1, 100000)] = 8,
        dropout_rate: Annotated[float, Range(0, below=1)] = 0.0,
        target_modules: tuple[str, ...] = ("query",),
        bias_type: Literal["none", "all", "lora_only"] = "none",
    ) -> None:
        self.rank = rank
        self.scale = alpha / rank
        self.dropout_rate = dropout_rate
        self.target_modules = tuple(target_modules)
        self.bias_type = bias_type

    def add_to(self, model: nn.Module, *, freezes: bool, also_train: Sequence[str] = ()) -> list[str]:
        """Put adapters into the model, in place; returns the names of the adapted layers.

        `freezes`: only the adapters are trained, the biases that `bias_type` names, and the parameters below the
        prefixes of `also_train`. Otherwise, what was trained before is still trained.
        """
        names = [name for name, _ in model.named_modules() if name.endswith(self.target_modules)]
        if not names:
            raise UserError(self._not_found(model))
        for name in names:
            self._replace(model, name)
        if freezes:
            train_only(model, also_train)
        self._free_biases(model)
        return names

    def _replace(self, model: nn.Module, name: str) -> None:
        layer = model.get_submodule(name)
        parent = model.get_submodule(name.rpartition(".")[0])
        adapted: nn.Module
        if isinstance(layer, nn.Linear):
            adapted = LoraLinear(layer, rank=self.rank, scale=self.scale, dropout_rate=self.dropout_rate)
        elif isinstance(layer, nn.Embedding):
            adapted = LoraEmbedding(layer, rank=self.rank, scale=self.scale)
        else:
            raise UserError(
                f"--adapter_conf target_modules: {name} is a {type(layer).__name__}; LoRA supports only linear layers "
                f"and embeddings. Use more specific names, such as self_attn.linear_q{why_no_linear(name)}"
            )
        setattr(parent, name.rpartition(".")[2], adapted)

    def _free_biases(self, model: nn.Module) -> None:
        if self.bias_type == "all":
            for name, parameter in model.named_parameters():
                if name.rpartition(".")[2] == "bias":
                    parameter.requires_grad_(True)
        elif self.bias_type == "lora_only":
            for layer in model.modules():
                if isinstance(layer, LoraLinear) and layer.bias is not None:
                    layer.bias.requires_grad_(True)

    def _not_found(self, model: nn.Module) -> str:
        wanted = ", ".join(self.target_modules) or "an empty list"
        return (
            f"--adapter_conf target_modules: no layer's name ends in {wanted}; linear layers of this model are named "
            f"{', '.join(candidates(model))}. Name some of them, or set --use_adapter false"
        )


def candidates(model: nn.Module) -> list[str]:
    """Last components of the names of all linear layers, for error messages."""
    linear = (name for name, part in model.named_modules() if isinstance(part, nn.Linear))
    return sorted({name.rpartition(".")[2] for name in linear} - {str(index) for index in range(100)})


def train_only(model: nn.Module, prefixes: Sequence[str]) -> None:
    """Freeze every parameter except those of adapters and those whose name starts with a prefix."""
    names = [name for name, _ in model.named_parameters()]
    for prefix in prefixes:
        if not any(_is_below(name, prefix) for name in names):
            tops = ", ".join(sorted({name.partition(".")[0] for name in names}))
            raise UserError(f"--also_train {prefix}: no weight has this name or prefix; the model has {tops}")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(is_adapter(name) or any(_is_below(name, prefix) for prefix in prefixes))


def _is_below(name: str, prefix: str) -> bool:
    """Whether the name starts with these components; `*` stands for any characters of one component."""
    parts, wanted = name.split("."), prefix.split(".")
    return len(parts) >= len(wanted) and all(map(fnmatchcase, parts, wanted))


def saved_weights(
    state: Mapping[str, Tensor], model: nn.Module, strategy: SaveStrategy, *, also_train: Sequence[str] = ()
) -> dict[str, Tensor]:
    """What a saved model holds. `state` is the state dict of `model`; without adapters it is returned as it is.

    `adapter_only` holds the adapters, the biases trained with them, the parameters below `also_train`, and the
    statistics of batch norms that are trained.
    `required_grad_only` holds all trained parameters and all buffers (statistics of batch norms).
    """
    adapted = {name: part for name, part in model.named_modules() if isinstance(part, (LoraLinear, LoraEmbedding))}
    result = dict(state)
    if not any(is_adapter(name) for name in state):
        return result
    for name, part in adapted.items():
        result[f"{name}.weight"] = result[f"{name}.weight"] + _update(part, result, name, part.scale)
    if strategy == "all":
        return result
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    if strategy == "adapter_only":
        others = {name for name in trained if name.endswith(".bias") or any(_is_below(name, p) for p in also_train)}
        layers = {name.rpartition(".")[0] for name in others}
        buffers = {name for name, _ in model.named_buffers() if name.rpartition(".")[0] in layers}
        kept = {name for name in result if is_adapter(name)} | others | buffers
    else:
        frozen = {name for name, _ in model.named_parameters()} - trained
        kept = result.keys() - frozen
    return {name: tensor for name, tensor in result.items() if name in kept}


def without_merged_adapters(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of the same model without adapters: leaves out every A and B whose weight includes them already."""
    merged = {name for name in weights if _is_lora(name) and f"{name.rpartition('.')[0]}.weight" in weights}
    return {name: tensor for name, tensor in weights.items() if name not in merged}


def has_separate_adapters(weights: Mapping[str, Tensor]) -> bool:
    """Whether there are LoRA adapters whose weight is in another file."""
    return any(_is_lora(name) for name in without_merged_adapters(weights))


def merge_into(model: nn.Module, weights: Mapping[str, Tensor], *, scale: float) -> dict[str, Tensor]:
    """The weights of `model`, which has no adapters but all base weights, with a file of adapters merged into them."""
    weights = without_merged_adapters(weights)
    result = {**model.state_dict(), **{name: item for name, item in weights.items() if not _is_lora(name)}}
    for name in dict.fromkeys(name.rpartition(".")[0] for name in weights if _is_lora(name)):
        try:
            layer = model.get_submodule(name)
        except AttributeError:
            raise UserError(f"this model has no layer for the adapter {name}") from None
        result[f"{name}.weight"] = result[f"{name}.weight"] + _update(layer, weights, name, scale)
    return result


def _update(layer: nn.Module, weights: Mapping[str, Tensor], name: str, scale: float) -> Tensor:
    first, second = weights.get(f"{name}{_A}"), weights.get(f"{name}{_B}")
    if first is None or second is None:
        raise UserError(f"the adapter {name} needs both {name}{_A} and {name}{_B}: the file is incomplete or damaged")
    own = layer.weight
    shape = tuple(own.shape) if isinstance(own, Tensor) else ()
    wanted = shape[::-1] if isinstance(layer, nn.Embedding) else shape
    if (
        (first.dim(), second.dim()) != (2, 2)
        or (len(second), first.shape[1]) != wanted
        or len(first) != second.shape[1]
    ):
        raise UserError(
            f"the adapter {name}, {_B[1:]} {tuple(second.shape)} by {_A[1:]} {tuple(first.shape)}, does not fit the "
            f"layer, whose weight is {shape}: it was probably trained for another model"
        )
    product = torch.mm(second, first) * scale
    return product.t() if isinstance(layer, nn.Embedding) else product


def is_adapter(name: str) -> bool:
    """Whether this is the name of a parameter of an adapter."""
    return _is_lora(name) or _HOULSBY in name


def _is_lora(name: str) -> bool:
    return name.endswith((_A, _B))


def why_no_linear(name: str) -> str:
    """The option that makes a layer with the name of a linear one a convolution; empty for other layers."""
    if name.rpartition(".")[2] not in ("w_1", "w_2"):
        return ""
    return f", or {name.partition('.')[0]}_conf positionwise_layer_type linear"
