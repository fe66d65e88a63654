"""Shape files: `utterance 1330,80` (speech_shape) or `utterance 17` (text_shape.char), as ESPnet2 writes them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tympan.data.table import Ints, Table
from tympan.errors import UserError
from tympan.runtime.atomic import atomic_write


@dataclass(frozen=True)
class Shapes:
    """Lengths of one kind of data for each row, and how many elements a step of time has."""

    name: str
    lengths: Ints
    """(rows,)"""
    dim: int = 1
    """Product of the dimensions after the first, the same for all utterances."""


def read_shapes(path: str | os.PathLike[str], ids: NDArray[np.bytes_] | None = None) -> Shapes:
    """Lengths in the order of `ids`, or of the file. The file may know more utterances than `ids`."""
    table = Table(path)
    values = table.value_bytes()
    first, _, rest = np.char.partition(values, b",").T
    if not np.char.isdigit(first).all():
        line = int(np.argmin(np.char.isdigit(first)))
        raise UserError(f"{path}:{line + 1}: expected 'UTTERANCE LENGTH[,DIM...]', found '{table.value(line)}'")
    if not (rest == rest[0]).all():
        line = int(np.argmax(rest != rest[0]))
        raise UserError(
            f"{path}:{line + 1}: utterance '{table.id(line)}' has the shape {table.value(line)}, "
            f"the first one has {table.value(0)}: all must agree but in length"
        )
    lengths = first.astype(np.int64)
    if ids is not None:
        lines = table.find_all(ids)
        if (lines < 0).any():
            row = int(np.argmax(lines < 0))
            missing, total = ids[row].decode("utf-8"), int((lines < 0).sum())
            raise UserError(f"{path}: utterance '{missing}' is missing ({total} in all); run --collect_stats again")
        lengths = lengths[lines]
    # `speech_shape` and `text_shape.char` are the shapes of `speech` and `text`.
    name = os.path.basename(os.fspath(path)).partition("_shape")[0]
    return Shapes(name, lengths, _product(rest[0], path))


def write_shapes(
    path: str | os.PathLike[str], shapes: Mapping[str, Sequence[int]] | Iterable[tuple[str, Sequence[int]]]
) -> None:
    """Write `id d0,d1,...` lines."""
    entries = shapes.items() if isinstance(shapes, Mapping) else shapes
    with atomic_write(path) as stream:
        stream.writelines(f"{name} {','.join(map(str, shape))}\n" for name, shape in entries)


def _product(rest: bytes, path: str | os.PathLike[str]) -> int:
    try:
        return int(np.prod([int(size) for size in rest.decode("ascii").split(",") if size], dtype=np.int64))
    except ValueError:
        raise UserError(f"{path}:1: expected 'UTTERANCE LENGTH[,DIM...]'") from None
