"""Write a model as an ARPA file, one block of lines at a time, without a loop over lines."""

from __future__ import annotations

import gzip
import os
from typing import IO

import numpy as np
from numpy.typing import NDArray

from tympan.runtime.atomic import atomic_write
from tympan.text.ngram.model import NgramModel
from tympan.text.ngram.scratch import Array

_LINES = 1 << 16
_DECIMALS = 6
_DIGITS = 3 + _DECIMALS
"""Number of digits of a logarithm: the lowest value that can be written is -999.999999."""


def write_arpa(model: NgramModel, path: str | os.PathLike[str]) -> None:
    """Write `path` atomically, compressed if its name ends with .gz."""
    with atomic_write(path, "wb") as stream:
        if str(path).endswith(".gz"):
            # No time in the header, so that the same model gives the same file.
            with gzip.GzipFile(fileobj=stream, mode="wb", compresslevel=6, filename="", mtime=0) as compressed:
                write_arpa_lines(model, compressed)
        else:
            write_arpa_lines(model, stream)


def write_arpa_lines(model: NgramModel, stream: IO[bytes] | gzip.GzipFile) -> None:
    """Write ARPA text to an open stream."""
    counts = "".join(f"ngram {n}={count}\n" for n, count in enumerate(model.counts, start=1))
    stream.write(f"\\data\\\n{counts}\n".encode())
    table = _WordTable(model.words)
    for n, count in enumerate(model.counts, start=1):
        stream.write(f"\\{n}-grams:\n".encode())
        first_entry = model.first_entry(n)
        for first in range(first_entry, first_entry + count, _LINES):
            last = min(first + _LINES, first_entry + count)
            stream.write(_lines(model, table, n, first, last))
        stream.write(b"\n")
    stream.write(b"\\end\\\n")


def _lines(model: NgramModel, table: _WordTable, order: int, first: int, last: int) -> bytes:
    """Format a block. Every line is a row of bytes with gaps (NUL), which are removed at the end."""
    rows = last - first
    columns = [_numbers(model.log_prob[first:last]), _constant(b"\t", rows)]
    for position, words in enumerate(model.ngrams(first, last).T):
        if position:
            columns.append(_constant(b" ", rows))
        columns.append(table.rows(words))
    if order < model.order:
        columns += [_constant(b"\t", rows), _numbers(model.backoff[first + 1 : last + 1])]
    columns.append(_constant(b"\n", rows))
    text = np.concatenate(columns, axis=1)
    closed: NDArray[np.uint8] = text[text != 0]
    return closed.tobytes()


class _WordTable:
    """Words as bytes, so that many can be gathered at once."""

    def __init__(self, words: list[str]) -> None:
        encoded = [word.encode() for word in words]
        self.text = np.frombuffer(b"".join(encoded) + b"\0", np.uint8)
        self.lengths = np.array([len(word) for word in encoded])
        self.starts = np.cumsum(self.lengths) - self.lengths

    def rows(self, words: Array) -> Array:
        """(words, length of the longest), padded with NUL."""
        lengths = self.lengths[words]
        offsets = np.arange(lengths.max())
        is_inside = offsets < lengths[:, None]
        return self.text[np.where(is_inside, self.starts[words][:, None] + offsets, len(self.text) - 1)]


def _constant(text: bytes, rows: int) -> Array:
    return np.full((rows, 1), text[0], np.uint8)


def _numbers(values: Array) -> Array:
    """Format logarithms right-aligned: sign, digits, six decimals. NUL is used for padding before the sign."""
    scaled = np.rint(np.abs(values.astype(np.float64)) * 10**_DECIMALS).astype(np.uint32)
    text = np.zeros((len(values), 1 + _DIGITS + 1), np.uint8)
    rest = scaled
    for place in range(_DIGITS):
        rest, digit = np.divmod(rest, np.uint32(10))
        column = -1 - place if place < _DECIMALS else -2 - place
        text[:, column] = digit + ord("0")
        if place > _DECIMALS:
            text[:, column] *= scaled >= 10**place
    text[:, -1 - _DECIMALS] = ord(".")
    text[:, 0] = np.where(values < 0, ord("-"), 0)
    text[scaled == 0, :-1] = 0  # 0, as lmplz writes if there is no backoff
    return text
