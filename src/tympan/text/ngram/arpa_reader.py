"""Read ARPA files of any toolkit (KenLM, SRILM, ...).

A block of lines is parsed at once. Only if there is a mistake, its lines are checked one by one to report the first.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import IO

import numpy as np

from tympan.errors import UserError
from tympan.text.ngram.counts import find_sorted
from tympan.text.ngram.files import open_bytes
from tympan.text.ngram.model import NgramModel
from tympan.text.ngram.scratch import Array, index_type

UNKNOWN_LOG_PROB = -100.0
"""Log probability of `<unk>` in a model without `<unk>`, as in KenLM."""
LOWEST = -99.0
"""The logarithm of zero in ARPA files."""

_COUNT = re.compile(rb"ngram\s+(\d+)\s*=\s*(\d+)\s*$")
_BLOCK_LINES = 1 << 17
_IS_SPACE = np.isin(np.arange(256), list(b" \t\n\r\v\f"))
"""Whitespace of bytes.split."""


def read_arpa(path: str) -> NgramModel:
    """Read `path`, which may be compressed with gzip. Raises UserError with the line of a mistake."""
    with open_bytes(path) as stream:
        lines = _Lines(stream, path)
        counts = _read_header(lines)
        numbers: defaultdict[bytes, int] = defaultdict()
        numbers.default_factory = numbers.__len__
        unigrams = _read_section(lines, 1, counts[0], numbers)
        numbers.default_factory = None
        trie = _Trie(unigrams, numbers, path)
        for n, count in enumerate(counts[1:], start=2):
            trie.add(_read_section(lines, n, count, numbers))
        if lines.skip_blank() != b"\\end\\":
            raise lines.mistake(
                "expected \\end\\ here; the file is truncated, or has more n-grams than stated in \\data\\"
            )
    return trie.finish()


class _Lines:
    """Lines with their numbers."""

    def __init__(self, stream: IO[bytes], path: str) -> None:
        self.stream = stream
        self.path = path
        self.number = 0

    def next(self) -> bytes | None:
        """Return the next line, stripped, or None at the end of the file."""
        line = self.stream.readline()
        self.number += 1
        return line.strip() if line else None

    def skip_blank(self) -> bytes | None:
        """Return the next line that is not empty."""
        line = self.next()
        while line == b"":
            line = self.next()
        return line

    def take(self, count: int) -> list[bytes]:
        taken = list(islice(self.stream, count))
        self.number += len(taken)
        return taken

    def mistake(self, message: str, line: int | None = None) -> UserError:
        return UserError(f"{self.path}:{line or self.number}: {message}")


def _read_header(lines: _Lines) -> list[int]:
    """Read the counts of each order. Text before \\data\\ is ignored."""
    line = lines.next()
    while line != b"\\data\\":
        if line is None:
            raise UserError(f"{lines.path}: no line \\data\\: this is not an ARPA file")
        line = lines.next()
    counts: list[int] = []
    line = lines.skip_blank()
    while line and (found := _COUNT.match(line)):
        if int(found[1]) != len(counts) + 1:
            raise lines.mistake(f"expected 'ngram {len(counts) + 1}=...', found '{_show(line)}'")
        counts.append(int(found[2]))
        line = lines.next()
    if line or not counts:
        found_text = "the end of the file" if line is None else f"'{_show(line)}'"
        raise lines.mistake(f"expected 'ngram {len(counts) + 1}=COUNT' or an empty line, found {found_text}")
    while len(counts) > 1 and counts[-1] == 0:
        counts.pop()
    return counts


@dataclass(frozen=True)
class _Section:
    order: int
    first_line: int
    words: list[Array]  # a column of word ids for each position
    log_prob: Array
    backoff: Array

    def text(self, index: int, names: list[str]) -> str:
        return " ".join(names[column[index]] for column in self.words)


def _read_section(lines: _Lines, order: int, count: int, numbers: dict[bytes, int]) -> _Section:
    title = lines.skip_blank()
    if title != b"\\%d-grams:" % order:
        found = "the end of the file" if title is None else f"'{_show(title)}'"
        raise lines.mistake(f"expected '\\{order}-grams:' or fewer {order - 1}-grams, found {found}")
    first_line = lines.number + 1
    blocks = []
    left = count
    while left:
        first = lines.number + 1
        block = lines.take(min(left, _BLOCK_LINES))
        if len(block) < min(left, _BLOCK_LINES):
            raise lines.mistake(f"the file ends here, but {left - len(block)} of the {count} {order}-grams are missing")
        blocks.append(_parse(block, order, first, lines, numbers))
        left -= len(block)
    columns = list(zip(*blocks, strict=True)) or [()] * (order + 2)
    log_prob, backoff = (np.concatenate([np.empty(0, np.float32), *parts]) for parts in (columns[0], columns[-1]))
    words = [np.concatenate([np.empty(0, np.int32), *parts]) for parts in columns[1:-1]]
    return _Section(order, first_line, words, log_prob, backoff)


def _parse(block: list[bytes], order: int, first_line: int, lines: _Lines, numbers: dict[bytes, int]) -> list[Array]:
    """Parse the columns of a block: log10 probability, words, backoff."""
    fields, sizes = _split(block)
    wrong = np.flatnonzero((sizes != order + 1) & (sizes != order + 2))
    if len(wrong):
        line = _show(block[wrong[0]].strip())
        raise lines.mistake(
            f"expected a number, {order} word(s) and an optional backoff, found '{line}'", first_line + int(wrong[0])
        )
    count = len(block)
    columns = _columns(fields, sizes, order)
    try:
        log_prob = np.fromiter(map(float, columns[0]), np.float32, count)
        backoff = np.fromiter(map(float, columns[-1]), np.float32, count)
        words = [np.fromiter(map(numbers.__getitem__, column), np.int32, count) for column in columns[1:-1]]
    except (ValueError, KeyError):
        raise _first_mistake(block, order, first_line, lines, numbers) from None
    bad = np.flatnonzero(~(log_prob <= 0) | np.isnan(backoff) | (backoff == np.inf))
    if len(bad):
        raise lines.mistake(
            f"a log10 probability must be 0 or less and a backoff finite, found '{_show(block[bad[0]].strip())}'",
            first_line + int(bad[0]),
        )
    return [np.maximum(log_prob, np.float32(LOWEST)), *words, np.maximum(backoff, np.float32(LOWEST))]


def _split(block: list[bytes]) -> tuple[list[bytes], Array]:
    """Return all fields of the lines, and their number per line. A list per line would be several times slower."""
    text = b"".join(block) + b"\n"
    characters = np.frombuffer(text, np.uint8)
    is_space = _IS_SPACE[characters]
    begins = np.flatnonzero(~is_space & np.concatenate([[True], is_space[:-1]]))
    ends = np.flatnonzero(characters == ord("\n"))[: len(block)]
    return text.split(), np.diff(np.searchsorted(begins, ends), prepend=0)


def _columns(fields: list[bytes], sizes: Array, order: int) -> list[Sequence[bytes]]:
    """Return fields by their position in the line. A missing backoff is 0."""
    size = int(sizes[0])
    if (sizes == size).all():
        columns: list[Sequence[bytes]] = [fields[place::size] for place in range(size)]
        return columns if size == order + 2 else [*columns, [b"0"] * len(sizes)]
    everything = np.array([*fields, b"0"], dtype=object)
    first = np.cumsum(sizes) - sizes
    backoff = np.where(sizes == order + 2, first + order + 1, len(fields))
    return [everything[first + place] for place in range(order + 1)] + [everything[backoff]]


def _first_mistake(
    block: list[bytes], order: int, first_line: int, lines: _Lines, numbers: dict[bytes, int]
) -> UserError:
    for line, text in enumerate(block, start=first_line):
        log_prob, *words = text.split()
        for value in (log_prob, *words[order:]):
            try:
                float(value)
            except ValueError:
                return lines.mistake(f"expected a number, found '{_show(value)}'", line)
        for word in words[:order] if order > 1 else ():
            if word not in numbers:
                return lines.mistake(f"the word '{_show(word)}' is not among the 1-grams", line)
    raise AssertionError("no mistake found")


class _Trie:
    """The orders read so far, in the layout of model.py."""

    def __init__(self, unigrams: _Section, numbers: dict[bytes, int], path: str) -> None:
        """<unk> is added to `numbers` if it is missing."""
        self.path = path
        encoded = list(numbers)
        self._check_unigrams(encoded, unigrams)
        log_prob, backoff = unigrams.log_prob, unigrams.backoff
        for name in (b"<s>", b"</s>"):
            if name not in numbers:
                raise UserError(f"{path}: '{name.decode()}' is not among the 1-grams, so no sentence can start or end")
        if b"<unk>" not in numbers and b"<UNK>" in numbers:
            encoded[numbers[b"<UNK>"]] = b"<unk>"
        elif b"<unk>" not in numbers:
            numbers[b"<unk>"] = len(encoded)
            encoded.append(b"<unk>")
            log_prob, backoff = np.append(log_prob, np.float32(UNKNOWN_LOG_PROB)), np.append(backoff, np.float32(0))
        self.words = [word.decode() for word in encoded]
        self.bits = max(1, (len(self.words) - 1).bit_length())
        self.counts = [len(self.words)]
        self.key = np.arange(len(self.words), dtype=np.int64)
        self.log_prob, self.backoff = [log_prob], [backoff]
        self.suffix = np.zeros(len(self.words), np.int64)

    def add(self, section: _Section) -> None:
        """Add the next order: sort it by context, and find the suffix of each n-gram."""
        state = np.zeros(len(section.log_prob), np.int64)
        for column in section.words[:-1]:
            state = self._extend(state, column)
            if not state.all():
                index = int(np.flatnonzero(state == 0)[0])
                below = section.order - 1
                raise UserError(
                    f"{self.path}:{section.first_line + index}: the {section.order}-gram "
                    f"'{section.text(index, self.words)}': its first {below} word(s) are not among the {below}-grams"
                )
        key = state << self.bits | section.words[-1]
        sort = np.argsort(key, kind="stable")
        key = key[sort]
        twice = np.flatnonzero(key[1:] == key[:-1])
        if len(twice):
            index = int(sort[twice[0] + 1])
            raise UserError(
                f"{self.path}:{section.first_line + index}: '{section.text(index, self.words)}' is given twice "
                f"(also in line {section.first_line + int(sort[twice[0]])})"
            )
        suffix = self._suffixes(self.suffix[state[sort] - 1], section.words[-1][sort])
        self.key = np.concatenate([self.key, key])
        self.suffix = np.concatenate([self.suffix, suffix])
        self.log_prob.append(section.log_prob[sort])
        self.backoff.append(section.backoff[sort])
        self.counts.append(len(key))

    def finish(self) -> NgramModel:
        entries, states = len(self.key), 1 + sum(self.counts[:-1])
        kind = index_type(entries)
        return NgramModel(
            words=self.words,
            counts=self.counts,
            word=(self.key & ((1 << self.bits) - 1)).astype(np.int32),
            log_prob=np.concatenate(self.log_prob),
            backoff=np.concatenate([np.zeros(1, np.float32), *self.backoff[:-1]]),
            suffix=self.suffix.astype(kind),
            children=np.searchsorted(self.key, np.arange(states + 1, dtype=np.int64) << self.bits).astype(kind),
        )

    def _suffixes(self, state: Array, word: Array) -> Array:
        """Return the state of the longest known n-gram that is `state` or one of its suffixes, followed by `word`.

        SRILM may prune an n-gram and keep a longer n-gram that ends with it, so the next shorter one may be missing.
        """
        found = self._extend(state, word)
        while len(missing := np.flatnonzero(found == 0)):
            state[missing] = self.suffix[state[missing] - 1]
            found[missing] = self._extend(state[missing], word[missing])
        return found

    def _extend(self, state: Array, word: Array) -> Array:
        """Return the state of each context with one more word, or 0 if there is none."""
        wanted = state << self.bits | word
        entry = np.minimum(find_sorted(self.key, wanted), len(self.key) - 1)
        return np.where(self.key[entry] == wanted, entry + 1, 0)

    def _check_unigrams(self, encoded: list[bytes], section: _Section) -> None:
        numbers = section.words[0]
        twice = np.flatnonzero(numbers != np.arange(len(numbers)))
        if len(twice):
            word = _show(encoded[numbers[twice[0]]])
            line = section.first_line + int(twice[0])
            raise UserError(f"{self.path}:{line}: the word '{word}' is given twice in the 1-grams")
        for line, text in enumerate(encoded, start=section.first_line):
            try:
                text.decode()
            except UnicodeDecodeError:
                raise UserError(f"{self.path}:{line}: '{_show(text)}' is not UTF-8; convert the file first") from None


def _show(text: bytes) -> str:
    shown = text.decode(errors="backslashreplace")
    return shown if len(shown) <= 60 else shown[:57] + "..."
