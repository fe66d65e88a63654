"""The model hub: getting a packed folder by its name, and putting one there. The package is optional."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tympan.errors import UserError


def check_name(name: str) -> None:
    """UserError unless this is OWNER/NAME."""
    if name.count("/") != 1 or name.startswith((".", "/", "~")) or name.endswith("/"):
        raise UserError(f"{name}: the name of a model on the hub is OWNER/NAME")


def download(name: str) -> Path:
    """OWNER/NAME of a model hub, into its cache."""
    try:
        check_name(name)
    except UserError:
        raise UserError(f"{name}: no such folder (and OWNER/NAME would be a model of the hub)") from None
    hub = _package(f"{name}: no such folder; to load it from a model hub")
    with _explained(f"{name}: no such folder, and the model hub says"):
        return Path(hub.snapshot_download(name))


def publish(folder: Path, name: str) -> str:
    """Put the folder there as OWNER/NAME, made if need be. Answers with its address."""
    check_name(name)
    hub = _package("--push_to")
    with _explained(f"{folder} could not be published as {name}, the model hub says"):
        api = hub.HfApi()
        address = str(api.create_repo(name, exist_ok=True))
        api.upload_folder(folder_path=folder, repo_id=name)
    return address


def check_can_publish(name: str) -> None:
    """Before the work of packing: the name, and the package."""
    check_name(name)
    _package("--push_to")


def _package(what: str) -> Any:
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError:
        raise UserError(f"{what}: pip install 'tympan[hub]'") from None


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """What the hub refuses, and a network that is not there, are told without a traceback."""
    try:
        yield
    except Exception as error:
        # Any of them: the package's transport, and with it the kind of its errors, changes from release to release.
        raise UserError(f"{what}: {type(error).__name__}: {error}") from error
