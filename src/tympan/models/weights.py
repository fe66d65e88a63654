"""Reading weights, without running anything that a file may hold."""

from __future__ import annotations

import pickle
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from tympan.errors import UserError


def load_weights(path: str | Path) -> dict[str, Tensor]:
    """The state dict of a safetensors file or of one that torch wrote, on the CPU.

    A checkpoint of ESPnet2 or Tympan (`{"model": state dict, ...}`) gives its model.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: no such weights file")
    content = _load_safetensors(path) if path.suffix == ".safetensors" else _load_torch(path)
    if isinstance(content, dict) and isinstance(content.get("model"), dict):
        content = content["model"]
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise UserError(f"{path}: does not hold weights (a mapping of names to tensors)")
    return content


def _load_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except SafetensorError as error:
        raise UserError(f"{path}: not a readable safetensors file ({error})") from None


def _load_torch(path: Path) -> object:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise UserError(
            f"{path}: holds more than tensors: reading it could run code; save its state dict alone, or as safetensors"
        ) from None
    except (RuntimeError, EOFError, OSError, ValueError) as error:
        raise UserError(f"{path}: not a readable weights file ({error})") from None
