"""Download models from a model hub and publish them there. Its package `huggingface_hub` is optional."""

from __future__ import annotations

import contextlib
import glob
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

from tympan.config.yaml_text import read_mapping
from tympan.errors import UserError
from tympan.runtime.packages import import_optional

CONFIGS = ("config.yaml", "config.json")
SUFFIXES = frozenset(
    {".safetensors", ".pth", ".pt", ".bin", ".h5", ".msgpack", ".ot", ".onnx", ".onnx_data", ".ckpt", ".gguf"}
)
"""Files of weights, in the formats of several frameworks."""
SHARDS = ("model-*-of-*.safetensors", "*.safetensors", "pytorch_model.bin", "pytorch_model-*-of-*.bin")
"""Weights of the Hugging Face hub, best first, if there is none of Tympan's own names."""


def download(name: str, *, weights: Sequence[str]) -> Path:
    """Download OWNER/NAME from a model hub into its cache. For `weights`, see `needed_files`."""
    try:
        check_name(name)
    except UserError:
        raise UserError(f"{name}: no such folder. A model on the hub is named OWNER/NAME") from None
    hub = _package(f"{name}: no such folder; loading it from a model hub")
    with _explained(f"{name}: no such folder, and the model hub reports"):
        return _fetch(hub, name, weights)


def publish(folder: Path, name: str) -> str:
    """Upload the folder as OWNER/NAME, which is created if needed. Returns its address."""
    check_name(name)
    hub = _package("--push_to")
    with _explained(f"{folder} could not be published as {name}; the model hub reports"):
        api = hub.HfApi()
        address = str(api.create_repo(name, exist_ok=True))
        api.upload_folder(folder_path=folder, repo_id=name)
    return address


def check_can_publish(name: str) -> None:
    """Check the name and that the hub package is installed, before packing starts."""
    check_name(name)
    _package("--push_to")


def check_name(name: str) -> None:
    """UserError unless this is OWNER/NAME."""
    if name.count("/") != 1 or name.startswith((".", "/", "~")) or name.endswith("/"):
        raise UserError(f"{name}: a model on the hub is named OWNER/NAME")


def needed_files(files: Sequence[str], weights: Sequence[str], *, named: Collection[str] = ()) -> list[str]:
    """The files without weights, and one kind of weights for each folder with a configuration.

    `weights` are patterns of names, best first, each for one file. `named` are the files that a `meta.yaml` names: then
    no other weights are chosen. Of a folder of the Hugging Face hub, only the files of its first level are chosen.
    """
    found = [file for file in files if _is_weights(file)]
    others = [file for file in files if file not in found]
    if "meta.yaml" in files:
        return others + [file for file in found if file in named]
    if "config.yaml" not in files:
        others = [file for file in others if "/" not in file]
    chosen = []
    for folder in sorted({PurePosixPath(file).parent for file in others if PurePosixPath(file).name in CONFIGS}):
        inside = sorted(file for file in found if PurePosixPath(file).parent == folder)
        chosen += _one_kind(inside, weights)
    return others + chosen


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


def _fetch(hub: Any, name: str, weights: Sequence[str]) -> Path:
    """Download what loading the model needs: repositories also contain weights for other frameworks."""
    try:
        files = hub.list_repo_files(name)
    except Exception:
        # Without a network, a model that was downloaded before is in the cache.
        with contextlib.suppress(Exception):
            return Path(hub.snapshot_download(name, local_files_only=True))
        raise
    named: list[str] = []
    if "meta.yaml" in files:
        meta = read_mapping(Path(hub.snapshot_download(name, allow_patterns=["meta.yaml"])) / "meta.yaml")
        listed = [meta.get(key) for key in ("files", "yaml_files")]
        named = [str(file) for files_of in listed if isinstance(files_of, dict) for file in files_of.values()]
    chosen = needed_files(files, weights, named=named)
    return Path(hub.snapshot_download(name, allow_patterns=[glob.escape(file) for file in chosen]))


def _package(what: str) -> Any:
    return import_optional("huggingface_hub", what)


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Errors of the hub, and of the network, are reported without a traceback."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        # Catch every exception: the package raises other types of errors from release to release.
        raise UserError(f"{what}: {type(error).__name__}: {error}") from error
