"""Adapters in a file of their own: applied to a loaded model (`--adapter PATH`), or packed without their model."""

from __future__ import annotations

import logging
from pathlib import Path

from torch import Tensor, nn

from tympan.config.asr import AsrTrainConfig
from tympan.config.choices import ADAPTERS
from tympan.config.read import load_training_config
from tympan.errors import UserError
from tympan.files import status_of
from tympan.models.adapter import Adapter, is_adapter, merge_into
from tympan.models.weights import in_own_names, load_weights

ADAPTER_FILE = "adapter.safetensors"
_NAMES = (ADAPTER_FILE, "valid.acc.ave.pth", "valid.acc.best.pth", "valid.*.ave.pth", "valid.*.best.pth")


def find_adapter(path: Path) -> Path:
    """The weights of an adapter: the file itself, or the one in a packed folder or an experiment directory."""
    if status_of(path) is None:
        raise UserError(f"--adapter {path}: no such file or directory")
    if path.is_file():
        return path
    found = [file for name in _NAMES for file in sorted(path.glob(name))]
    if not found:
        raise UserError(
            f"--adapter {path}: expects a file of adapter weights, or a folder with one of {', '.join(_NAMES)}"
        )
    return found[0]


def read_adapter(path: Path, *, allow_import: bool = False) -> tuple[AsrTrainConfig, dict[str, Tensor]]:
    """The training configuration beside the file, and its weights. UserError if it holds no separate adapters."""
    file = find_adapter(path)
    beside = file.parent / "config.yaml"
    if not beside.is_file():
        raise UserError(f"--adapter {file}: there is no config.yaml beside it, which describes the adapters")
    config = load_training_config(AsrTrainConfig, beside, allow_import=allow_import)
    weights = load_weights(file)
    if not config.use_adapter or not any(is_adapter(name) for name in weights):
        raise UserError(
            f"--adapter {file}: holds no separate adapters. A run with --use_adapter true and --save_strategy "
            "adapter_only saves them; with save_strategy all, its files are complete models"
        )
    return config, weights


def apply_adapter(model: nn.Module, path: Path, *, allow_import: bool = False) -> None:
    """Add the adapters to a model that has all its weights, in place. LoRA is merged into the weights."""
    config, weights = read_adapter(path, allow_import=allow_import)
    adapter: Adapter = ADAPTERS.build(config.adapter, config.adapter_conf)
    weights = in_own_names(model, weights)
    if adapter.MERGES:
        state = merge_into(model, weights, scale=adapter.scale)
    else:
        adapter.add_to(model, freezes=False)
        state = {**model.state_dict(), **weights}
    own = model.state_dict()
    wrong = [name for name in state if name not in own or own[name].shape != state[name].shape]
    if wrong:
        raise UserError(
            f"--adapter {path}: {wrong[0]} does not fit this model; the adapter was trained for another model or "
            "another token list"
        )
    model.load_state_dict(state)
    logging.info("applied %d adapter weights of %s (%s)", len(weights), path, config.adapter)
