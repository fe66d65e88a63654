"""Build the optimizer: frozen weights, weight decay, and the fused kernel where the device has one."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from tympan.errors import UserError
from tympan.models.abilities import OwnRates
from tympan.models.layers import depth_of, encoder_layers
from tympan.runtime.device import has_fused_optimizers
from tympan.runtime.memory import is_out_of_memory

Named = list[tuple[str, nn.Parameter]]


def freeze(model: nn.Module, prefixes: Sequence[str]) -> list[str]:
    """Freeze every weight whose name starts with a prefix (`--freeze_param encoder.embed`). Returns the names."""
    frozen = []
    for prefix in prefixes:
        matching = [(n, p) for n, p in model.named_parameters() if n == prefix or n.startswith(f"{prefix}.")]
        if not matching:
            tops = sorted({name.partition(".")[0] for name, _ in model.named_parameters()})
            raise UserError(
                f"--freeze_param {prefix}: no weight has this name or prefix; the top-level modules are "
                f"{', '.join(tops)}"
            )
        for name, parameter in matching:
            parameter.requires_grad_(False)
            frozen.append(name)
    return frozen


def build_optimizer(
    optim_class: type[torch.optim.Optimizer],
    conf: Mapping[str, Any],
    parameters: Named,
    *,
    without_decay: Iterable[str] = (),
    lr_factors: Mapping[str, float] | None = None,
    own_rates: Mapping[str, float] | None = None,
) -> torch.optim.Optimizer:
    """Build the optimizer with one parameter group, or with more if weight decay or learning rates differ.

    `lr_factors`: factor of the learning rate of each weight (`layer_factors`). `own_rates`: learning rates of weights
    that don't have that of `conf`.
    """
    if not parameters:
        raise UserError("--freeze_param freezes every weight of the model: there is nothing to train")
    groups = _groups(parameters, conf, spared=set(without_decay), factors=lr_factors or {}, rates=own_rates or {})
    if len(groups) > 1 and issubclass(optim_class, torch.optim.LBFGS):
        raise UserError(
            "--optim lbfgs has the same options for all weights, so it can't be used with --layer_decay or "
            "--exclude_weight_decay true: leave them out, or choose another optimizer such as adam"
        )
    if conf.get("line_search_fn") not in (None, "strong_wolfe"):
        raise UserError(f"optim_conf line_search_fn: must be null or strong_wolfe, found {conf['line_search_fn']}")
    chosen = _with_kernel(optim_class, conf, [parameter for _, parameter in parameters])
    try:
        optimizer = optim_class(groups, **chosen)
        if optim_class.__module__.startswith("torch."):
            _try_update(optim_class, chosen, parameters[0][1].device)
    except (TypeError, ValueError, AssertionError, RuntimeError, ArithmeticError) as error:
        if is_out_of_memory(error):
            raise
        given = ", ".join(f"{key}={value}" for key, value in _other_than_default(optim_class, conf).items())
        text = f"optim_conf: {optim_class.__name__} can't update weights with {given or 'its defaults'}"
        raise UserError(f"{text}: {str(error).splitlines()[0]}") from error
    return optimizer


def _groups(
    parameters: Named,
    conf: Mapping[str, Any],
    *,
    spared: Collection[str],
    factors: Mapping[str, float],
    rates: Mapping[str, float],
) -> list[dict[str, Any]]:
    """One parameter group for each combination of factor, weight decay and learning rate."""
    usual = float(conf["lr"]) if factors or rates else 0.0
    found: dict[tuple[float, bool, float], list[nn.Parameter]] = {}
    for name, parameter in parameters:
        kind = factors.get(name, 1.0), name in spared, rates.get(name, usual)
        found.setdefault(kind, []).append(parameter)
    groups: list[dict[str, Any]] = []
    for (factor, is_spared, rate), members in sorted(found.items(), key=lambda item: (-item[0][0], *item[0][1:])):
        group: dict[str, Any] = {"params": members}
        if factors or rates:
            group["lr"] = factor * rate
        if is_spared:
            group["weight_decay"] = 0.0
        groups.append(group)
    return groups


def _try_update(optim_class: type[torch.optim.Optimizer], conf: Mapping[str, Any], device: torch.device) -> None:
    """Update one small weight: torch checks some values, such as `capturable`, only in the first update."""
    weight = nn.Parameter(torch.ones(2, device=device))
    weight.grad = torch.ones_like(weight)
    optim_class([weight], **conf).step(lambda: 1.0)


def _other_than_default(optim_class: type[torch.optim.Optimizer], conf: Mapping[str, Any]) -> dict[str, Any]:
    defaults = {name: item.default for name, item in inspect.signature(optim_class).parameters.items()}
    return {key: value for key, value in conf.items() if value not in (defaults.get(key), [defaults.get(key)])}


def layer_factors(model: nn.Module, decay: float) -> dict[str, float]:
    """Factor of the learning rate of each weight, for --layer_decay.

    It is 1 for decoder, output layers and the last encoder layer, and `decay` times that of the layer above for each
    other encoder layer. What is below the first layer has the factor of a further layer.
    """
    names = [name for name, _ in model.named_parameters()]
    layers = encoder_layers(names)
    if not layers:
        raise UserError("--layer_decay: the encoder of this model has no list of layers")
    return {name: decay ** max(len(layers) - depth_of(name, layers), 0) for name in names}


def own_rates(model: nn.Module) -> dict[str, float]:
    """Learning rates of the weights that have their own, for --exclude_weight_decay: ESPnet2 uses them only with it."""
    return {name: rate for name, rate in _treated_apart(model).items() if rate is not None}


def _treated_apart(model: nn.Module) -> dict[str, float | None]:
    """The names of the weights that their layers exclude from weight decay, with their learning rates."""
    return {
        f"{prefix}.{name}" if prefix else name: rate
        for prefix, module in model.named_modules()
        if isinstance(module, OwnRates)
        for name, rate in module.own_learning_rates().items()
    }


def names_without_decay(
    model: nn.Module,
    *,
    bias_weight_decay: bool = False,
    normalization_weight_decay: bool = False,
    keys: Sequence[str] = (),
) -> set[str]:
    """Return the names of weights without weight decay, for --exclude_weight_decay.

    These are biases, normalization layers, embeddings, state space models (`decoder: s4`), and names that contain one
    of `keys`. `bias_weight_decay` and `normalization_weight_decay` apply weight decay to the first two.
    """
    spared = set(_treated_apart(model))
    for prefix, module in model.named_modules():
        is_norm = isinstance(module, nn.LayerNorm | nn.GroupNorm | nn.RMSNorm) or hasattr(module, "running_mean")
        for name, _ in module.named_parameters(recurse=False):
            full = f"{prefix}.{name}" if prefix else name
            if (
                (name.endswith("bias") and not bias_weight_decay)
                or (is_norm and not normalization_weight_decay)
                or isinstance(module, nn.Embedding)
                or any(key in full for key in keys)
            ):
                spared.add(full)
    return spared


def _with_kernel(
    optim_class: type[torch.optim.Optimizer], conf: Mapping[str, Any], parameters: Sequence[nn.Parameter]
) -> dict[str, Any]:
    """Add `fused=True` if the optimizer and the device support it and the user chose no implementation."""
    chosen = dict(conf)
    accepted = inspect.signature(optim_class).parameters
    asked = any(chosen.get(name) is not None for name in ("fused", "foreach")) or chosen.get("differentiable")
    plain = all(type(p.data) is torch.Tensor and p.is_floating_point() for p in parameters)
    if "fused" in accepted and not asked and plain and parameters and has_fused_optimizers(parameters[0].device):
        chosen["fused"] = True
    return chosen
