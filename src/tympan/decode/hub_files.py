"""Choose the files of a repository on a model hub that loading its model needs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

CONFIGS = ("config.yaml", "config.json")
SUFFIXES = frozenset(
    {".safetensors", ".pth", ".pt", ".bin", ".h5", ".msgpack", ".ot", ".onnx", ".onnx_data", ".ckpt", ".gguf"}
)
"""Files of weights, in the formats of several frameworks."""
SHARDS = ("model-*-of-*.safetensors", "*.safetensors", "pytorch_model.bin", "pytorch_model-*-of-*.bin")
"""Weights of the Hugging Face hub, best first, if there is none of Tympan's own names."""


def needed_files(files: Sequence[str], weights: Sequence[str], *, named: Collection[str] = ()) -> list[str]:
    """The files without weights, and one kind of weights for each folder with a configuration.

    `weights` are patterns of names, best first, each for one file. `named` are the files that a `meta.yaml` names: then
    no other weights are chosen. Of a folder of the Hugging Face hub, only the files of its first level are chosen.
    """
    heavy = [file for file in files if _is_weights(file)]
    light = [file for file in files if file not in heavy]
    if "meta.yaml" in files:
        return light + [file for file in heavy if file in named]
    if "config.yaml" not in files:
        light = [file for file in light if "/" not in file]
    chosen = []
    for folder in sorted({PurePosixPath(file).parent for file in light if PurePosixPath(file).name in CONFIGS}):
        inside = sorted(file for file in heavy if PurePosixPath(file).parent == folder)
        chosen += _one_kind(inside, weights)
    return light + chosen


def _one_kind(files: Sequence[str], weights: Sequence[str]) -> list[str]:
    for pattern in weights:
        if found := [file for file in files if fnmatchcase(PurePosixPath(file).name, pattern)]:
            return found[:1]
    for pattern in SHARDS:
        if found := [file for file in files if fnmatchcase(PurePosixPath(file).name, pattern)]:
            return found
    return []


def _is_weights(file: str) -> bool:
    path = PurePosixPath(file)
    return path.suffix in SUFFIXES and not path.name.startswith("ngram")
