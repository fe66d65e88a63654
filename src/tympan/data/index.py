"""The utterance index: the rows of a training set over its data files, memory-mapped."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tympan.data.table import Ints, Table
from tympan.errors import UserError


class UtteranceIndex:
    """Rows are the utterances of `keys`: the first shape file if there is one, else the first data file.

    A data file may contain more utterances than that, as in ESPnet2, but not fewer.
    """

    def __init__(
        self, sources: Mapping[str, str | os.PathLike[str]], *, keys: str | os.PathLike[str] | None = None
    ) -> None:
        if not sources:
            raise UserError(
                "no data files are given: train_data_path_and_name_and_type needs at least one PATH,NAME,TYPE"
            )
        self.tables = {name: Table(path) for name, path in sources.items()}
        self.keys = next(iter(self.tables.values())) if keys is None else Table(keys)
        self._lines = {name: self._rows_of(table) for name, table in self.tables.items()}

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def ids(self) -> NDArray[np.bytes_]:
        return self.keys.ids

    def id(self, row: int) -> str:
        return self.keys.id(row)

    def row(self, utterance_id: str) -> int:
        row = self.keys.find(utterance_id)
        if row is None:
            raise UserError(f"{self.keys.path}: there is no utterance '{utterance_id}'")
        return row

    def line(self, row: int, name: str) -> int:
        """Return the line of the data file `name` that belongs to a row."""
        lines = self._lines[name]
        return row if lines is None else int(lines[row])

    def value(self, row: int, name: str) -> str:
        return self.tables[name].value(self.line(row, name))

    def lines(self, name: str) -> Ints:
        lines = self._lines[name]
        return np.arange(len(self), dtype=np.int64) if lines is None else lines

    def _rows_of(self, table: Table) -> Ints | None:
        """Return the line of each row, or None if the file has the same ids in the same order, the usual case."""
        if table is self.keys or (len(table) == len(self.keys) and np.array_equal(table.ids, self.keys.ids)):
            return None
        lines = table.find_all(self.keys.ids)
        require_all(lines, self.keys, table)
        return lines


def require_all(lines: Ints, wanted: Table, table: Table) -> None:
    """Raise UserError if some of the `wanted` utterances are not in `table`. The message lists the first of them."""
    missing: Sequence[int] = np.flatnonzero(lines < 0).tolist()
    if missing:
        shown = [f"{wanted.path}:{row + 1}: utterance '{wanted.id(row)}' is not in {table.path}" for row in missing[:5]]
        if len(missing) > len(shown):
            shown.append(
                f"... and {len(missing) - len(shown)} more. `tympan fix_data` keeps only utterances that are in "
                "all files."
            )
        raise UserError("\n".join(shown))
