"""Read the size of a Kaldi matrix from its first bytes, to get the lengths of features without reading them."""

from __future__ import annotations

import os

from tympan.data.ark import read_matrix, stored_shape
from tympan.data.audio import locate, open_source
from tympan.files import explained


def matrix_shape(source: str, *, base: str | os.PathLike[str] | None = None) -> tuple[int, ...]:
    """Return (rows, columns) or (length,) of `file.ark:offset`. Formats without a known header are read completely."""
    with open_source(locate(source, base)) as stream, explained(source, "a Kaldi matrix"):
        shape = stored_shape(stream)
    return tuple(read_matrix(source, base=base).shape) if shape is None else shape
