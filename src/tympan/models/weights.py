"""Read weights safely, without running code from the file."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from tympan.errors import UserError
from tympan.files import explained, require_file
from tympan.models.adapter import is_adapter, without_merged_adapters

_HOULSBY = re.compile(r"^(frontend\..*\.layers\.\d+)\.adapter\.houlsby_adapter\.")


def load_weights(path: str | Path) -> dict[str, Tensor]:
    """The state dict of a safetensors or torch file, on the CPU.

    A checkpoint of ESPnet2 or Tympan (`{"model": state dict, ...}`) or Lightning (`{"state_dict": ...}`) gives its
    model. Adapters whose weight includes them are left out: the model is the same without them.
    """
    path = Path(path)
    require_file(path, kind="weights file")
    content = _load_safetensors(path) if path.suffix == ".safetensors" else _load_torch(path)
    if isinstance(content, dict) and isinstance(content.get("model"), dict):
        _refuse_adapted_checkpoint(path, content)
        content = content["model"]
    elif isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = _of_lightning(content["state_dict"])
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise UserError(f"{path}: does not contain weights (a mapping of names to tensors)")
    _require_finite(path, content)
    return without_merged_adapters({_today(str(name)): tensor for name, tensor in content.items()})


def named_weights(path: Path, content: object) -> dict[str, Tensor]:
    """The weights inside a file of `read_tensors`; UserError if they are not a mapping of names to finite tensors."""
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in content.items()
    ):
        raise UserError(f"{path}: damaged: its weights must be a mapping of names to tensors")
    _require_finite(path, content)
    return content


def read_tensors(path: Path) -> dict[str, Any]:
    """The content of a torch file that is a mapping, on the CPU. Reading it never runs code."""
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    content = _load_torch(path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: expects a mapping, found {type(content).__name__}")
    return content


@runtime_checkable
class SavedUnderOtherNames(Protocol):
    """A layer whose weights have other names in saved models, so that every release of ESPnet2 can read them."""

    def saved_names(self) -> Mapping[str, str]:
        """The names in files by its own names, both relative to the layer."""
        ...


def released_names(weights: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """The weights of `model` with the names for files. `load_weights` reads both names.

    ESPnet2 up to 202511 ignores weights whose names it does not know, and keeps its random ones.
    """
    names = {
        f"{prefix}.{own}": f"{prefix}.{other}"
        for prefix, layer in model.named_modules()
        if isinstance(layer, SavedUnderOtherNames)
        for own, other in layer.saved_names().items()
    }
    return {names.get(name, name): tensor for name, tensor in weights.items()}


@runtime_checkable
class RenamesWeights(Protocol):
    """A part whose weights have other names in the files of another toolkit."""

    def rename_weights(self, weights: dict[str, Tensor], /) -> dict[str, Tensor]:
        """The weights of this part in its own names. Names that are its own already stay as they are."""
        ...


def in_own_names(model: nn.Module, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights of a whole model, with the names of another toolkit replaced by the model's own."""
    for prefix, part in model.named_modules():
        if isinstance(part, RenamesWeights):
            start = f"{prefix}." if prefix else ""
            inside = {name[len(start) :]: tensor for name, tensor in weights.items() if name.startswith(start)}
            outside = {name: tensor for name, tensor in weights.items() if not name.startswith(start)}
            weights = outside | {f"{start}{name}": tensor for name, tensor in part.rename_weights(inside).items()}
    return weights


def fill_weights(
    model: nn.Module, weights: dict[str, Tensor], weights_path: str | Path, config_path: str | Path
) -> None:
    """Load the weights; mismatches are reported by name and shape."""
    own = model.state_dict()
    weights = in_own_names(model, weights)
    missing = sorted(own.keys() - weights.keys())
    extra = sorted(weights.keys() - own.keys())
    shapes = [
        f"{name} is {tuple(weights[name].shape)} in the file, but {tuple(own[name].shape)} in the model"
        for name in sorted(own.keys() & weights.keys())
        if weights[name].shape != own[name].shape
    ]
    _require_finite(weights_path, weights)
    if missing or extra or shapes:
        lines = [f"{weights_path}: these weights do not match the model in {config_path}:"]
        lines += [f"  missing: {_some(missing)}"] * bool(missing)
        lines += [f"  unknown: {_some(extra)}"] * bool(extra)
        lines += [f"  {line}" for line in shapes[:5]]
        raise UserError("\n".join(lines))
    try:
        model.load_state_dict(weights)
    except UserError as error:
        raise UserError(f"{weights_path}: {error}") from None


def _of_lightning(state: dict[str, Any]) -> dict[str, Any]:
    """ESPnet2's Lightning module has its model as `model`, and keeps its loss functions beside it."""
    prefix = "model."
    inside = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    return inside or state


def _refuse_adapted_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """The adapters of a Tympan checkpoint are not merged into its weights, unlike those of every other file."""
    if "position" in content and any(is_adapter(name) for name in content["model"]):
        raise UserError(f"{path}: is the checkpoint of a training run with adapters; use the model of an epoch instead")


def _today(name: str) -> str:
    """ESPnet2 up to 202511 kept the subsampling's projection in a pair with the positional encoding.

    Its Houlsby adapters belong to a layer of an s3prl frontend, ours to the last linear layer of that layer.
    """
    name = _HOULSBY.sub(r"\1.feed_forward.output_dense.houlsby_adapter.", name)
    name = name.replace("encoder.embed.out.1.alpha", "encoder.embed.pos_enc.alpha")
    return name.replace("encoder.embed.out.0.", "encoder.embed.out.")


def _require_finite(path: str | Path, weights: Mapping[str, Tensor]) -> None:
    damaged = [
        name for name, tensor in weights.items() if tensor.is_floating_point() and not bool(tensor.isfinite().all())
    ]
    if damaged:
        raise UserError(f"{path}: contains NaN or infinity ({_some(sorted(damaged))}); use another file")


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _load_safetensors(path: Path) -> dict[str, Tensor]:
    with explained(path, "a safetensors file"):
        return load_file(path)


def _load_torch(path: Path) -> object:
    with explained(path, "a weights file"):
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError:
            raise UserError(
                f"{path}: contains more than tensors, so reading it could run code; save only its state dict, or use "
                "safetensors"
            ) from None
