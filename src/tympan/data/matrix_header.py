"""Read the size of a Kaldi matrix from its first bytes, to get the lengths of features without reading them."""

from __future__ import annotations

import os
import struct

from tympan.data.ark import read_matrix
from tympan.data.audio import locate, split_ark
from tympan.errors import UserError

_LONGEST = 32


def matrix_shape(source: str, *, base: str | os.PathLike[str] | None = None) -> tuple[int, ...]:
    """Return (rows, columns) or (length,) of `file.ark:offset`. Formats without a known header are read completely."""
    path, offset = split_ark(locate(source, base))
    try:
        with open(path, "rb") as stream:
            stream.seek(offset or 0)
            head = stream.read(_LONGEST)
    except OSError as error:
        raise UserError(f"{source}: {error.strerror or error}") from None
    shape = _shape(head)
    return tuple(read_matrix(source, base=base).shape) if shape is None else shape


def _shape(head: bytes) -> tuple[int, ...] | None:
    if head[:2] != b"\0B":
        return None
    kind, _, rest = head[2:].partition(b" ")
    if kind in (b"CM", b"CM2", b"CM3") and len(rest) >= 16:
        # Compressed: smallest value, range, rows, columns.
        return struct.unpack("<ii", rest[8:16])
    if kind in (b"FM", b"DM") and len(rest) >= 10 and rest[0] == rest[5] == 4:
        # Each number is preceded by its size in bytes.
        return struct.unpack("<i", rest[1:5]) + struct.unpack("<i", rest[6:10])
    if kind in (b"FV", b"DV") and len(rest) >= 5 and rest[0] == 4:
        return struct.unpack("<i", rest[1:5])
    return None
