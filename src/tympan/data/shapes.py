"""Shape files: `utterance 1330,80` (speech_shape) or `utterance 17` (text_shape.char), as ESPnet2 writes them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tympan.data.table import Ints, Table
from tympan.errors import UserError
from tympan.runtime.atomic import atomic_write

MOST_DIGITS = 11
"""Digits of a length: two months of audio. Its product with MOST_DIM fits in int64."""
MOST_DIM = 50_000_000


@dataclass(frozen=True)
class Shapes:
    """Lengths of one kind of data per row, and the number of elements per time step."""

    name: str
    lengths: Ints
    """(rows,)"""
    dim: int = 1
    """Product of the dimensions after the first, the same for all utterances."""


def read_shapes(path: str | os.PathLike[str], ids: NDArray[np.bytes_] | None = None) -> Shapes:
    """Read lengths in the order of `ids`, or of the file. The file may contain more utterances than `ids`."""
    table = Table(path)
    values = table.value_bytes()
    parsed = _parse(values.view(np.uint8).reshape(len(values), -1))
    if not parsed.is_number.all():
        line = int(np.argmin(parsed.is_number))
        raise UserError(
            f"{path}:{line + 1}: expected 'UTTERANCE LENGTH[,DIM...]' with a length of at most {MOST_DIGITS} digits, "
            f"found '{table.value(line)}'"
        )
    if not parsed.is_alike.all():
        line = int(np.argmin(parsed.is_alike))
        raise UserError(
            f"{path}:{line + 1}: utterance '{table.id(line)}' has the shape {table.value(line)}, "
            f"but the first one has {table.value(0)}: only the length, the first number, may differ"
        )
    lengths = parsed.lengths
    if ids is not None:
        lines = table.find_all(ids)
        if (lines < 0).any():
            row = int(np.argmax(lines < 0))
            missing, total = ids[row].decode("utf-8"), int((lines < 0).sum())
            raise UserError(
                f"{path}: utterance '{missing}' is missing ({total} missing in total); run --collect_stats again"
            )
        lengths = lengths[lines]
    # `speech_shape` and `text_shape.char` are the shapes of `speech` and `text`.
    name = os.path.basename(os.fspath(path)).partition("_shape")[0]
    return Shapes(name, lengths, _product(table.value(0).partition(",")[2], path))


def write_shapes(
    path: str | os.PathLike[str], shapes: Mapping[str, Sequence[int]] | Iterable[tuple[str, Sequence[int]]]
) -> None:
    """Write `id d0,d1,...` lines."""
    entries = shapes.items() if isinstance(shapes, Mapping) else shapes
    with atomic_write(path) as stream:
        stream.writelines(f"{name} {','.join(map(str, shape))}\n" for name, shape in entries)


@dataclass(frozen=True)
class _Parsed:
    lengths: Ints
    is_number: NDArray[np.bool_]
    is_alike: NDArray[np.bool_]
    """Check that the dimensions after the length are the same as in the first line."""


def _parse(chars: NDArray[np.uint8]) -> _Parsed:
    """Parse `LENGTH[,DIM...]` in each row of characters, one column at a time for all rows."""
    rows, width = chars.shape
    chars = np.concatenate([chars, np.zeros((rows, 1), dtype=np.uint8)], axis=1)
    ends = np.argmax((chars == ord(",")) | (chars == 0), axis=1)
    lengths = np.zeros(rows, dtype=np.int64)
    is_number = (ends > 0) & (ends <= MOST_DIGITS)
    for column in range(min(int(ends.max(initial=0)), MOST_DIGITS)):
        digit = chars[:, column].astype(np.int64) - ord("0")
        inside = column < ends
        is_number &= ~inside | ((digit >= 0) & (digit <= 9))
        lengths = np.where(inside, lengths * 10 + digit, lengths)
    rest = chars[0, ends[0] :]
    rest = rest[: np.flatnonzero(rest)[-1] + 1] if rest.any() else rest[:0]
    is_alike = np.count_nonzero(chars, axis=1) == ends + len(rest)
    for place, char in enumerate(rest):
        is_alike &= chars[np.arange(rows), np.minimum(ends + place, width)] == char
    return _Parsed(lengths, is_number, is_alike)


def _product(dims: str, path: str | os.PathLike[str]) -> int:
    sizes = [size for size in dims.split(",") if size]
    # int() itself rejects thousands of digits with a ValueError.
    product = math.prod(int(size) if size.isdecimal() and len(size) <= MOST_DIGITS else 0 for size in sizes)
    if not 0 < product <= MOST_DIM:
        raise UserError(
            f"{path}:1: expected 'UTTERANCE LENGTH[,DIM...]' with 1 to {MOST_DIM} elements per step, found ',{dims}'"
        )
    return product
