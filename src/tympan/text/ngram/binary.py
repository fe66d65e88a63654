"""Save a model as one file of arrays that is memory-mapped: it loads instantly, and processes share it.

Layout: a magic number, the length of a JSON header (little-endian 64-bit), the header, and the arrays listed in it,
each at a multiple of 64 bytes. Loading runs no code from the file.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable
from typing import IO

import numpy as np

from tympan.errors import UserError
from tympan.files import explained, open_file
from tympan.runtime.atomic import atomic_write
from tympan.text.ngram.model import NgramModel
from tympan.text.ngram.scratch import Array

MAGIC = b"tympan n-gram 1\n"
_ALIGNMENT = 64
_BLOCK = 1 << 20
_ARRAYS = ("word", "log_prob", "backoff", "suffix", "children")
_TYPES = {"<i4", "<i8", "<f4", "|u1"}


def write_binary(model: NgramModel, path: str | os.PathLike[str]) -> None:
    """Write `path` atomically."""
    arrays = {"words": np.frombuffer("\n".join(model.words).encode(), np.uint8)}
    arrays |= {name: getattr(model, name) for name in _ARRAYS}
    layout = {name: [array.dtype.newbyteorder("<").str, len(array)] for name, array in arrays.items()}
    checksum = _checksum([np.asarray(array, layout[name][0]) for name, array in arrays.items()])
    header = json.dumps({"counts": model.counts, "arrays": layout, "crc32": checksum}).encode()
    with atomic_write(path, "wb") as stream:
        stream.write(MAGIC + len(header).to_bytes(8, "little") + header)
        for name, array in arrays.items():
            _align(stream)
            np.ascontiguousarray(array, layout[name][0]).tofile(stream)


def read_binary(path: str | os.PathLike[str]) -> NgramModel:
    """Memory-map `path`. The arrays are read-only."""
    kind = "a binary n-gram model written by Tympan"
    with open_file(path, kind="n-gram model") as stream, explained(path, kind, advice="; create it again"):
        if stream.read(len(MAGIC)) != MAGIC:
            raise UserError(f"{path}: not {kind}")
        # No longer than the file: a damaged length could ask for any amount of memory.
        length = min(int.from_bytes(stream.read(8), "little"), os.fstat(stream.fileno()).st_size)
        header = json.loads(stream.read(length))
        arrays = {name: _map(stream, kind, size) for name, (kind, size) in header["arrays"].items()}
        counts = [int(count) for count in header["counts"]]
        # Older files have no checksum
        if header.get("crc32") not in (None, _checksum(arrays.values())):
            raise ValueError("the content does not match its checksum")
        words = arrays.pop("words").tobytes().decode().split("\n")
        model = NgramModel(words=words, counts=counts, **arrays)
        _check(model)
    return model


def _checksum(arrays: Iterable[Array]) -> int:
    checksum = 0
    for array in arrays:
        for first in range(0, len(array), _BLOCK):
            checksum = zlib.crc32(array[first : first + _BLOCK].tobytes(), checksum)
    return checksum


def _check(model: NgramModel) -> None:
    """ValueError for arrays that would be read outside of their bounds, or hold numbers that no model has."""
    entries, states = len(model.word), len(model.backoff)
    if min(model.counts) < 0 or sum(model.counts) != entries or model.counts[0] != len(model.words):
        raise ValueError("array sizes do not match")
    if len(model.log_prob) != entries or len(model.suffix) != entries or len(model.children) != states + 1:
        raise ValueError("array sizes do not match")
    if len(set(model.words)) != len(model.words) or not {"<s>", "</s>", "<unk>"} <= set(model.words):
        raise ValueError("a word occurs twice, or <s>, </s> or <unk> is missing")
    if model.children[0] != 0 or model.children[-1] != entries:
        raise ValueError("a number that refers to nothing")
    # In blocks, because a model may be larger than the memory.
    for first in range(0, entries, _BLOCK):
        _check_block(model, slice(first, first + _BLOCK))


def _check_block(model: NgramModel, block: slice) -> None:
    """State s > 0 is entry s - 1. An entry comes behind its suffix, and the children of a state behind the state."""
    word, suffix, children = model.word[block], model.suffix[block], model.children[block.start : block.stop + 1]
    is_tree = (np.diff(children) >= 0).all() and (children >= np.arange(block.start, block.start + len(children))).all()
    is_behind = (suffix <= np.arange(block.start, block.start + len(suffix))).all()
    if not (is_tree and is_behind and _is_within(word, len(model.words)) and _is_within(suffix, len(model.backoff))):
        raise ValueError("a number that refers to nothing")
    log_prob, backoff = model.log_prob[block], model.backoff[block]
    if not (np.isfinite(log_prob).all() and (log_prob <= 0).all() and np.isfinite(backoff).all()):
        raise ValueError("a probability above 1, or a number that is not finite")


def _is_within(numbers: Array, limit: int) -> bool:
    return bool((numbers >= 0).all() and (numbers < limit).all())


def is_binary(path: str | os.PathLike[str]) -> bool:
    with open_file(path, kind="n-gram model") as stream:
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
