"""Data type `hdf5`: a file of arrays, one dataset per utterance, through the optional package h5py."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from tympan.errors import UserError
from tympan.files import explained, require_file
from tympan.runtime.packages import import_fault

_SMALL_BYTES = 10_000_000
_MOST_EXPANSION = 1100
"""HDF5's filters compress zeros to about a thousandth."""
MAGIC = b"\x89HDF\r\n\x1a\n"


def is_hdf5(beginning: bytes) -> bool:
    return beginning.startswith(MAGIC)


def hdf5_lines(path: Path) -> bytes:
    """The lines of a table, `id FILE:id`, one per dataset of the file."""
    with explained(path, "an HDF5 file"), _opened(path) as file:
        names = sorted(file)
    bad = next((name for name in names if not name or any(char.isspace() for char in name)), None)
    if bad is not None or not names:
        what = f"the name {bad!r} has spaces" if names else "it has no datasets"
        raise UserError(f"{path}: {what}; each dataset must have the id of an utterance as its name")
    return "".join(f"{name} {path.absolute()}:{name}\n" for name in names).encode()


def read_hdf5(value: str) -> np.ndarray:
    """The array of a value `FILE:id`."""
    with explained(value, "a dataset of numbers"):
        dataset = _dataset(value)
        if dataset.ndim == 0 or dataset.dtype.kind not in "fiu":
            raise UserError(f"{value}: expected an array of shape (time,) or (time, dim)")
        stored = dataset.id.get_storage_size()
        if dataset.nbytes > _SMALL_BYTES + _MOST_EXPANSION * stored:
            raise UserError(f"{value}: damaged: the header says {dataset.nbytes} bytes, but only {stored} are stored")
        return np.asarray(dataset[()])


def hdf5_shape(value: str) -> tuple[int, ...]:
    with explained(value, "a dataset of numbers"):
        return tuple(int(size) for size in _dataset(value).shape)


def _dataset(value: str) -> Any:
    path, _, name = value.rpartition(":")
    file = _kept(path, os.getpid())
    # Opening a link to another file could read a device, or wait for a pipe
    is_elsewhere = any(hasattr(file.get(part, getlink=True), "filename") for part in _with_parents(name))
    found: Any = None if is_elsewhere else file.get(name)
    if is_elsewhere or (hasattr(found, "dtype") and (found.external or found.is_virtual)):
        raise UserError(f"{path}: the dataset '{name}' refers to another file; store its values in this file")
    if not hasattr(found, "dtype"):
        raise UserError(f"{path}: there is no dataset '{name}'")
    return found


def _with_parents(name: str) -> list[str]:
    """`a/b/c` -> `a`, `a/b`, `a/b/c`."""
    parts = name.split("/")
    return ["/".join(parts[: end + 1]) for end in range(len(parts))]


@lru_cache(maxsize=4)
def _kept(path: str, _process: int) -> Any:
    """Opened once per process: an open file can't be shared with a forked one."""
    return _opened(Path(path))


def _opened(path: Path) -> Any:
    if (fault := import_fault("h5py")) is not None:
        raise UserError(f"{path}: data type hdf5 needs the package h5py: {fault}")
    import h5py

    require_file(path)
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise UserError(f"{path}: is not an HDF5 file ({error})") from None
