"""Save a model as one file of arrays that is memory-mapped: it loads instantly, and processes share it.

Layout: a magic number, the length of a JSON header (little-endian 64-bit), the header, and the arrays listed in it,
each at a multiple of 64 bytes. Loading runs no code from the file.
"""

from __future__ import annotations

import json
import os
from typing import IO

import numpy as np

from tympan.errors import UserError
from tympan.runtime.atomic import atomic_write
from tympan.text.ngram.model import NgramModel
from tympan.text.ngram.scratch import Array

MAGIC = b"tympan n-gram 1\n"
_ALIGNMENT = 64
_ARRAYS = ("word", "log_prob", "backoff", "suffix", "children")
_TYPES = {"<i4", "<i8", "<f4", "|u1"}


def write_binary(model: NgramModel, path: str | os.PathLike[str]) -> None:
    """Write `path` atomically."""
    arrays = {"words": np.frombuffer("\n".join(model.words).encode(), np.uint8)}
    arrays |= {name: getattr(model, name) for name in _ARRAYS}
    layout = {name: [array.dtype.newbyteorder("<").str, len(array)] for name, array in arrays.items()}
    header = json.dumps({"counts": model.counts, "arrays": layout}).encode()
    with atomic_write(path, "wb") as stream:
        stream.write(MAGIC + len(header).to_bytes(8, "little") + header)
        for name, array in arrays.items():
            _align(stream)
            np.ascontiguousarray(array, layout[name][0]).tofile(stream)


def read_binary(path: str | os.PathLike[str]) -> NgramModel:
    """Memory-map `path`. The arrays are read-only."""
    try:
        with open(path, "rb") as stream:
            if stream.read(len(MAGIC)) != MAGIC:
                raise UserError(f"{path}: not a binary n-gram model written by Tympan")
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
            arrays = {}
            for name, (kind, size) in header["arrays"].items():
                arrays[name] = _map(stream, kind, size)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: damaged n-gram model ({error}); create it again") from None
    counts = [int(count) for count in header["counts"]]
    words = arrays.pop("words").tobytes().decode().split("\n")
    if set(arrays) != set(_ARRAYS) or sum(counts) != len(arrays["word"]) or counts[0] != len(words):
        raise UserError(f"{path}: damaged n-gram model (array sizes do not match); create it again")
    return NgramModel(words=words, counts=counts, **arrays)


def is_binary(path: str | os.PathLike[str]) -> bool:
    with open(path, "rb") as stream:
        return stream.read(len(MAGIC)) == MAGIC


def _align(stream: IO[bytes]) -> None:
    stream.write(b"\0" * (-stream.tell() % _ALIGNMENT))


def _map(stream: IO[bytes], kind: str, size: int) -> Array:
    if kind not in _TYPES:
        raise ValueError(f"array of type {kind}")
    start = stream.tell() + -stream.tell() % _ALIGNMENT
    stop = start + np.dtype(kind).itemsize * size
    if size < 1 or stop > os.fstat(stream.fileno()).st_size:
        raise ValueError("the file is truncated")
    array = np.memmap(stream, dtype=kind, mode="r", offset=start, shape=(size,))
    stream.seek(stop)
    return array
