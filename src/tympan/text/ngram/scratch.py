"""Working arrays: in memory if they are small, in unnamed temporary files if they are large."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tympan.errors import UserError

Array = NDArray[Any]


@dataclass(frozen=True)
class Scratch:
    """Creates arrays within a memory budget. The files have no name, so they disappear when the process ends."""

    memory_bytes: int = 1 << 28
    folder: Path | None = None

    @property
    def rows(self) -> int:
        """Number of rows to process at once. A step needs about sixteen columns of eight bytes per row."""
        return max(1024, self.memory_bytes // 128)

    def empty(self, size: int, dtype: DTypeLike) -> Array:
        """Return an uninitialized array."""
        kind = np.dtype(dtype)
        if size * kind.itemsize <= self.memory_bytes // 16:
            return np.empty(size, kind)
        with self._new_file() as file, _enough_room():
            if hasattr(os, "posix_fallocate"):
                # Here a full disk raises an error. In a mapped file, it would kill the process without a message.
                os.posix_fallocate(file.fileno(), 0, size * kind.itemsize)
            return np.memmap(file, dtype=kind, mode="w+", shape=(size,))

    def zeros(self, size: int, dtype: DTypeLike) -> Array:
        array = self.empty(size, dtype)
        if not isinstance(array, np.memmap):  # a new file contains zeros
            array.fill(0)
        return array

    def blocks(self, size: int) -> Iterator[slice]:
        """Yield consecutive slices of at most `rows`."""
        for start in range(0, size, self.rows):
            yield slice(start, min(size, start + self.rows))

    def growing(self, dtype: DTypeLike) -> GrowingArray:
        return GrowingArray(dtype, self._new_file())

    def _new_file(self) -> IO[bytes]:
        with _enough_room():
            return tempfile.TemporaryFile(dir=self.folder)


@dataclass
class GrowingArray:
    """An array of unknown length, written to a file."""

    dtype: DTypeLike
    file: IO[bytes]
    size: int = field(default=0, init=False)

    def append(self, values: Array) -> None:
        with _enough_room():
            self.file.write(np.ascontiguousarray(values, self.dtype).data)
        self.size += len(values)

    def finish(self) -> Array:
        """Return the complete array, memory-mapped."""
        with _enough_room():
            self.file.flush()
        if not self.size:
            self.file.close()
            return np.empty(0, self.dtype)
        with self.file:
            return np.memmap(self.file, dtype=self.dtype, mode="r+", shape=(self.size,))


@contextmanager
def _enough_room() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"can't write temporary files: {error.strerror}; use --temp_dir to choose a folder with more free space"
        ) from None


def index_type(size: int) -> type[np.signedinteger[Any]]:
    """Return the smallest integer type that can hold `size`."""
    return np.int32 if size < 2**31 else np.int64
