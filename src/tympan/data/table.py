"""Look up lines by id in a file of `id value` lines (wav.scp, text, a shape file) without reading it into memory.

The line table is built once with numpy. For large files, it is cached in a folder `.tympan` next to the file and
memory-mapped. Worker processes share its pages, and a file of a million lines opens in milliseconds.
"""

from __future__ import annotations

import json
import mmap
import os
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from tympan.data.hdf5 import hdf5_lines, is_hdf5
from tympan.data.kept import keep, kept_path
from tympan.errors import UserError
from tympan.files import open_file

Ints = NDArray[np.int64]
Columns = dict[str, NDArray[Any]]

CACHED_FROM_BYTES = 1 << 20
"""Smaller files are not cached. Parsing them takes a few milliseconds, and nothing is written to the user's folder."""

_VERSION = 1
_HEADER_BYTES = 4096
_CHUNK_LINES = 1 << 16
_PIECE_BYTES = 1 << 26
_NEWLINE = ord("\n")
_BLANKS = np.isin(np.arange(256), [ord(char) for char in " \t\r"])


class Table:
    """Lines by number (their order in the file) and by id."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._open()

    def _open(self) -> None:
        try:
            with open_file(self.path) as stream:
                status = os.fstat(stream.fileno())
                if status.st_size == 0:
                    raise UserError(f"{self.path}: the file is empty")
                self._bytes: mmap.mmap | bytes = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise UserError(f"{self.path}: cannot be read: {error.strerror}") from None
        if is_hdf5(self._bytes[:8]):
            self._bytes = hdf5_lines(self.path)
        self.stamp = {"version": _VERSION, "size": status.st_size, "mtime_ns": status.st_mtime_ns}
        columns = None
        is_cached = status.st_size >= CACHED_FROM_BYTES and isinstance(self._bytes, mmap.mmap)
        if is_cached:
            columns = _read_cache(kept_path(self.path, "index"), self.stamp)
        if columns is None:
            columns = _parse(self.path, np.frombuffer(self._bytes, dtype=np.uint8))
            if is_cached:
                _write_cache(kept_path(self.path, "index"), self.stamp, columns)
                columns = _read_cache(kept_path(self.path, "index"), self.stamp) or columns
        self._ids: NDArray[np.bytes_] = columns["ids"]
        self._starts: Ints = columns["starts"]
        self._ends: Ints = columns["ends"]
        self._order: Ints | None = columns.get("order")

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def ids(self) -> NDArray[np.bytes_]:
        """UTF-8 ids in file order."""
        return self._ids

    def id(self, line: int) -> str:
        return _decoded(bytes(self._ids[line]), f"{self.path}:{line + 1}: the utterance id")

    def value(self, line: int) -> str:
        raw = self._bytes[self._starts[line] : self._ends[line]]
        return _decoded(raw, f"{self.path}:{line + 1}: utterance '{self.id(line)}'")

    def find(self, utterance_id: str) -> int | None:
        """Return the line of an id."""
        key = utterance_id.encode("utf-8")
        if len(key) > self._ids.dtype.itemsize:
            return None
        line = int(self.find_all(np.array([key], dtype=self._ids.dtype))[0])
        return None if line < 0 else line

    def find_all(self, ids: NDArray[np.bytes_]) -> Ints:
        """Return the lines of many ids, or -1 for missing ones."""
        if len(ids) == len(self) and np.array_equal(ids, self._ids):
            return np.arange(len(ids), dtype=np.int64)
        places = np.searchsorted(self._ids, ids, sorter=self._order)
        places = np.minimum(places, len(self) - 1)
        lines = places if self._order is None else self._order[places]
        return np.where(self._ids[lines] == ids, lines, -1).astype(np.int64)

    def value_bytes(self) -> NDArray[np.bytes_]:
        """Return all values as one array of fixed width, for short values such as shapes."""
        raw = np.frombuffer(self._bytes, dtype=np.uint8)
        return _fixed_width(raw, np.asarray(self._starts), np.asarray(self._ends))

    def __getstate__(self) -> dict[str, Path]:
        return {"path": self.path}

    def __setstate__(self, state: dict[str, Path]) -> None:
        self.path = state["path"]
        self._open()


def _decoded(raw: bytes, what: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{what} is not UTF-8 text") from None


def _parse(path: Path, raw: NDArray[np.uint8]) -> Columns:
    if bytes(raw[:3]) == b"\xef\xbb\xbf":
        raise UserError(f"{path}:1: the file begins with a byte order mark; save it as UTF-8 without one")
    ends = _newlines(raw)
    if raw[-1] != _NEWLINE:
        ends = np.append(ends, len(raw))
    starts = np.concatenate([[0], ends[:-1] + 1]).astype(np.int64)
    id_ends = _moved(raw, starts, ends, ~_BLANKS)
    if (id_ends == starts).any():
        line = int(np.argmax(id_ends == starts))
        raise UserError(f"{path}:{line + 1}: the line is empty or begins with a space; expected an utterance id")
    ids = _fixed_width(raw, starts, id_ends)
    value_starts = _moved(raw, id_ends, ends, _BLANKS)
    value_ends = _moved(raw, ends, value_starts, _BLANKS)
    columns: Columns = {"ids": ids, "starts": value_starts, "ends": value_ends}
    if not (ids[:-1] < ids[1:]).all():
        order = np.argsort(ids, kind="stable").astype(np.int64)
        _refuse_repeats(path, ids, order)
        columns["order"] = order
    return columns


def _newlines(raw: NDArray[np.uint8]) -> Ints:
    """Find the line ends in chunks, because a mask of the whole file would need as much memory as the file."""
    pieces = range(0, len(raw), _PIECE_BYTES)
    return np.concatenate(
        [np.flatnonzero(raw[at : at + _PIECE_BYTES] == _NEWLINE).astype(np.int64) + at for at in pieces]
    )


def _moved(raw: NDArray[np.uint8], places: Ints, limits: Ints, passable: NDArray[np.bool_]) -> Ints:
    """Move each position towards its limit, forwards or backwards, over `passable` characters."""
    places = places.copy()
    backwards = bool((places > limits).any())
    step, seen = (-1, -1) if backwards else (1, 0)
    moving = np.flatnonzero(places != limits)
    while len(moving):
        moving = moving[passable[raw[places[moving] + seen]]]
        places[moving] += step
        moving = moving[places[moving] != limits[moving]]
    return places


def _fixed_width(raw: NDArray[np.uint8], starts: Ints, ends: Ints) -> NDArray[np.bytes_]:
    """Return the spans as an array of byte strings, padded with NUL."""
    width = max(int((ends - starts).max(initial=0)), 1)
    out = np.zeros((len(starts), width), dtype=np.uint8)
    column = np.arange(width)
    for first in range(0, len(starts), _CHUNK_LINES):
        begin, end = starts[first : first + _CHUNK_LINES, None], ends[first : first + _CHUNK_LINES, None]
        place = begin + column
        out[first : first + _CHUNK_LINES] = np.where(place < end, raw[np.minimum(place, len(raw) - 1)], 0)
    return out.view(f"S{width}")[:, 0]


def _refuse_repeats(path: Path, ids: NDArray[np.bytes_], order: Ints) -> None:
    same = np.flatnonzero(ids[order[:-1]] == ids[order[1:]])
    if len(same):
        shown = [
            f"{path}:{order[place + 1] + 1}: utterance '{ids[order[place]].decode('utf-8', 'replace')}' "
            f"is already on line {order[place] + 1}"
            for place in same[:5]
        ]
        if len(same) > len(shown):
            shown.append(f"{path}: {len(same) - len(shown)} more repeated ids")
        raise UserError("\n".join(shown))


def _write_cache(path: Path, stamp: dict[str, int], columns: Columns) -> None:
    layout, offset = {}, _HEADER_BYTES
    for name, column in columns.items():
        layout[name] = {"dtype": column.dtype.str, "offset": offset, "count": len(column)}
        offset = -(-(offset + column.nbytes) // 64) * 64
    header = json.dumps({**stamp, "columns": layout}).encode("ascii").ljust(_HEADER_BYTES)

    def write(stream: IO[bytes]) -> None:
        stream.write(header)
        for name, column in columns.items():
            stream.seek(layout[name]["offset"])
            stream.write(np.ascontiguousarray(column).data)

    keep(path, write)


def _read_cache(path: Path, stamp: dict[str, int]) -> Columns | None:
    """Return the cached columns, memory-mapped, or None if there is no cache for the current version of the file."""
    try:
        with path.open("rb") as stream:
            header = json.loads(stream.read(_HEADER_BYTES))
        layout = header.pop("columns", None)
        if header != stamp or layout is None:
            return None
        columns: Columns = {
            name: np.memmap(path, dtype=place["dtype"], mode="r", offset=place["offset"], shape=(place["count"],))
            for name, place in layout.items()
        }
        return columns if _is_table(columns, stamp) else None
    except Exception:  # a damaged cache costs only the time to parse the file again
        return None


def _is_table(columns: Columns, stamp: dict[str, int]) -> bool:
    """Whether the columns belong together, and point into the file."""
    ids, starts, ends = (columns[name] for name in ("ids", "starts", "ends"))
    order = columns.get("order", starts)
    are_numbers = all(column.dtype == np.int64 for column in (starts, ends, order))
    return (
        ids.dtype.kind == "S"
        and are_numbers
        and len(ids) == len(starts) == len(ends) == len(order) > 0
        and bool(0 <= starts[0] <= ends[-1] <= stamp["size"])
    )
