"""Find a pretrained model of `transformers`: a local folder, or a repository of the Hugging Face hub.

Only JSON, safetensors and tensors of `pytorch_model.bin` are read. No code of a folder or repository is run.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from tympan import files
from tympan.errors import UserError
from tympan.models.pretrained.fairseq import own_names
from tympan.models.weights import load_weights
from tympan.runtime.packages import import_fault

CONFIG = "config.json"
PREPROCESSOR = "preprocessor_config.json"
PROCESSOR = "processor_config.json"
"""Newer releases of transformers write the options of the preprocessor into this file, as `feature_extractor`."""
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
FETCHED = (
    CONFIG,
    PREPROCESSOR,
    PROCESSOR,
    "*.safetensors",
    "model.safetensors.index.json",
    "tokenizer*.json",
    "vocab*",
)


def require_transformers() -> Any:
    """The package `transformers`; UserError with the command to install it if it is missing."""
    fault = import_fault("transformers")
    if fault is not None:
        raise UserError(f"pretrained encoders need the package 'transformers': {fault}")
    return importlib.import_module("transformers")


def find_folder(name: str, download_dir: str | None) -> Path:
    """The folder of a model: `name` itself, below `download_dir`, or downloaded from the hub."""
    candidates = [Path(name)] + ([Path(download_dir, name)] if download_dir else [])
    for candidate in candidates:
        if (candidate / CONFIG).is_file():
            return candidate
    if Path(name).is_dir():
        raise UserError(f"{name}: not the folder of a pretrained model, because it has no {CONFIG}")
    return _download(name, download_dir)


def read_architecture(folder: Path) -> dict[str, Any]:
    """The content of config.json, with `do_normalize` of the preprocessor."""
    architecture = read_json(folder / CONFIG)
    if not isinstance(architecture.get("model_type"), str):
        raise UserError(f"{folder / CONFIG}: it has no 'model_type', so it does not describe a model of transformers")
    return {**architecture, "do_normalize": bool(_preprocessor(folder).get("do_normalize", True))}


def _preprocessor(folder: Path) -> dict[str, Any]:
    if (folder / PREPROCESSOR).is_file():
        return read_json(folder / PREPROCESSOR)
    found = read_json(folder / PROCESSOR).get("feature_extractor") if (folder / PROCESSOR).is_file() else None
    return dict(found) if isinstance(found, Mapping) else {}


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The weights of a speech encoder in the names of the base model of `transformers`."""
    return own_names(read_weight_files(folder))


def read_weight_files(folder: Path) -> dict[str, Tensor]:
    """The weights in the names of their file, or of several files with an index."""
    for name in WEIGHTS:
        if (folder / name).is_file():
            return load_weights(folder / name)
    for name in INDEXES:
        if (folder / name).is_file():
            parts = _parts(folder / name)
            merged: dict[str, Tensor] = {}
            for part in parts:
                # A name with a path could point outside of the folder
                merged |= load_weights(folder / Path(part).name)
            return merged
    raise UserError(f"{folder}: there are no weights ({' or '.join(WEIGHTS)})")


def _parts(index: Path) -> list[str]:
    """The files that an index of weights names."""
    places = read_json(index).get("weight_map")
    if not isinstance(places, Mapping) or not places:
        raise UserError(f"{index}: expects weight_map, a mapping of the names of weights to files")
    return sorted({str(name) for name in places.values()})


def _download(name: str, download_dir: str | None) -> Path:
    place = Path(download_dir or ".", name)
    advice = (
        f"Without a network: fetch {CONFIG}, {PREPROCESSOR} and {WEIGHTS[0]} of https://huggingface.co/{name} "
        f"on another machine and put them in {place}"
    )
    if name.count("/") > 1 or name.startswith(("/", ".")):
        raise UserError(
            f"'{name}' is neither a folder with {CONFIG} nor the name of a model on the hub, such as "
            "microsoft/wavlm-large or bert-base-uncased"
        )
    fault = import_fault("huggingface_hub")
    if fault is not None:
        raise UserError(f"the pretrained model '{name}' is not on this machine, and {fault}. {advice}")
    hub = importlib.import_module("huggingface_hub")
    try:
        found = hub.snapshot_download(name, cache_dir=download_dir, allow_patterns=list(FETCHED))
        if not any(Path(found).glob("*.safetensors")):
            found = hub.snapshot_download(
                name, cache_dir=download_dir, allow_patterns=[CONFIG, PREPROCESSOR, PROCESSOR, "*.bin"]
            )
    except Exception as error:  # the package raises errors of many kinds
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"the pretrained model '{name}' could not be downloaded ({reason}). {advice}") from None
    return Path(found)


def read_json(path: Path) -> dict[str, Any]:
    """The mapping in a JSON file; UserError for anything else."""
    return files.read_json(path, "a JSON file of a pretrained model")
