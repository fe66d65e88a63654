"""Kaldi archives of matrices: read one entry, read all, and write archives atomically.

kaldiio parses the formats, including compressed ones. Its own entry points are not used for reading, because they
unpickle entries and run `cmd |` sources: a data file must not be able to run a program.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO

import numpy as np
from kaldiio import matio

from tympan.data.audio import locate, open_source
from tympan.errors import UserError
from tympan.files import explained, open_file
from tympan.runtime.atomic import atomic_write

_HEADER_BYTES = 32


def read_matrix(source: str | os.PathLike[str], *, base: str | os.PathLike[str] | None = None) -> np.ndarray:
    """Read the matrix or vector at `file.ark:offset` (or at the start of a file): binary, compressed or text."""
    location = locate(source, base)
    with open_source(location) as stream:
        return _read_entry(stream, location)


def read_ark(path: str | os.PathLike[str]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (id, matrix) for every entry of an archive, in order."""
    with open_file(path) as stream:
        while True:
            key = _read_key(stream, path)
            if not key:
                return
            yield key, _read_entry(stream, f"{os.fspath(path)}: '{key}'")


class ArkWriter:
    """Appends matrices to an open archive and records the offset of each one."""

    def __init__(self, stream: IO[bytes], *, compression_method: int | None = None) -> None:
        self._stream = stream
        self._method = compression_method
        self.offsets: dict[str, int] = {}
        self.frames: dict[str, int] = {}

    def write(self, key: str, matrix: np.ndarray) -> None:
        self._stream.write(f"{key} ".encode())
        self.offsets[key] = self._stream.tell()
        self.frames[key] = len(matrix)
        matio.write_array(self._stream, matrix, compression_method=self._method)


@contextmanager
def write_ark(path: str | os.PathLike[str], *, compression_method: int | None = None) -> Iterator[ArkWriter]:
    """Open an archive, which is renamed to `path` if the block succeeds. `compression` is Kaldi's method, 1 to 7."""
    with atomic_write(path, "wb") as stream:
        yield ArkWriter(stream, compression_method=compression_method)


def write_matrix(path: str | os.PathLike[str], matrix: np.ndarray, *, text: bool = False) -> None:
    """Write one matrix to a separate file, in Kaldi's binary or text format."""
    with atomic_write(path, "wb") as stream:
        if text:
            rows = "\n".join("  " + " ".join(f"{value:.12g}" for value in row) for row in np.atleast_2d(matrix))
            stream.write(f" [\n{rows} ]\n".encode())
        else:
            matio.write_array(stream, matrix)


def _read_key(stream: BinaryIO, path: str | os.PathLike[str]) -> str:
    key = bytearray()
    while (byte := stream.read(1)) not in (b" ", b""):
        key += byte
        if len(key) > 4096:
            raise UserError(f"{Path(path)}: not a Kaldi archive")
    return key.decode("utf-8", "replace").strip()


def _read_entry(stream: BinaryIO, place: str) -> np.ndarray:
    start = stream.tell()
    flag = stream.read(5)
    stream.seek(start)
    if not flag:
        raise UserError(f"{place}: the archive ends before this entry")
    if flag[:3] == b"PKL":
        raise UserError(f"{place}: a pickled entry could run code when it is read; write it as a Kaldi matrix instead")
    if flag[:2] != b"\0B":
        return _read_text(stream, place)
    with explained(place, "a Kaldi matrix"):
        stored_shape(stream)
        reader = matio.read_int32vector if flag[2:3] == b"\4" else matio.read_matrix_or_vector
        return np.asarray(reader(stream))


def stored_shape(stream: BinaryIO) -> tuple[int, ...] | None:
    """(rows, columns) or (length,) of the binary matrix that begins here, without moving; None for other formats.

    ValueError for more values than the file has bytes: they must not be asked for.
    """
    start = stream.tell()
    shape = _shape(stream.read(_HEADER_BYTES))
    stream.seek(start)
    left = os.fstat(stream.fileno()).st_size - start
    if shape is not None and (min(shape) < 0 or math.prod(shape) > left):
        raise ValueError(f"the header says {' x '.join(map(str, shape))} values, but only {left} bytes follow")
    return shape


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
    if head[2:3] == b"\4" and len(head) >= 7:
        # A vector of integers.
        return struct.unpack("<i", head[3:7])
    if kind in (b"FV", b"DV") and len(rest) >= 5 and rest[0] == 4:
        return struct.unpack("<i", rest[1:5])
    return None


def _read_text(stream: BinaryIO, place: str) -> np.ndarray:
    """Parse ` [ 1 2\\n 3 4 ]`: a matrix if it has several lines, else a vector. float64 keeps all digits."""
    text = bytearray()
    while not text.rstrip().endswith(b"]"):
        line = stream.readline()
        if not line:
            raise UserError(f"{place}: not a Kaldi matrix: neither binary nor text between '[' and ']'")
        text += line
        if not text.lstrip().startswith(b"["):
            raise UserError(f"{place}: no Kaldi matrix starts here")
    body = text.strip()[1:-1].decode("ascii", "replace")
    try:
        rows = [[float(value) for value in line.split()] for line in body.splitlines() if line.strip()]
        matrix = np.array(rows, dtype=np.float64)
    except ValueError:
        raise UserError(
            f"{place}: the text matrix contains something other than numbers, or rows of different length"
        ) from None
    return matrix[0] if len(rows) == 1 and "\n" not in body else matrix
