"""Read training text as one array of word ids."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

import numpy as np

from tympan.errors import UserError
from tympan.text.ngram.files import open_bytes
from tympan.text.ngram.scratch import Array, Scratch

BOS, EOS, UNK = 0, 1, 2
SPECIAL_WORDS = ("<s>", "</s>", "<unk>")

_BLOCK_BYTES = 1 << 22
_BOM = b"\xef\xbb\xbf"
# The end of a line is one token of a split block. Text must not contain this byte, which would be mistaken for it.
_LINE_END = b"\0"
_SPECIAL = re.compile(rb"(?<![^ \t\r\n\v\f])(?:<s>|</s>|<unk>)(?![^ \t\r\n\v\f])")


@dataclass(frozen=True)
class Corpus:
    """Concatenated sentences, each with EOS at its end, without a start symbol."""

    tokens: Array  # int32
    words: list[str]
    sentences: int
    empty_sentences: int
    longest: int
    """Number of tokens of the longest sentence, without EOS."""


def read_corpus(path: str, *, scratch: Scratch, skip_symbols: bool = False) -> Corpus:
    """Read one sentence per line, tokens separated by whitespace, from `path` ('-': standard input), plain or gzip.

    An empty line is an empty sentence, as in lmplz. Only ASCII whitespace separates tokens: U+3000 is part of a word.
    """
    numbers: defaultdict[bytes, int] = defaultdict()
    numbers.default_factory = numbers.__len__
    for word in (b"<s>", _LINE_END, b"<unk>"):
        numbers[word]
    tokens = scratch.growing(np.int32)
    sentences = empty = longest = 0
    with open_bytes(path) as stream:
        for block in _blocks_of_lines(stream):
            _check(block, path, first_line=sentences + 1, skip_symbols=skip_symbols)
            text = _SPECIAL.sub(b" ", block) if skip_symbols else block
            pieces = text.replace(b"\n", b" \0 ").split()
            ids = np.fromiter(map(numbers.__getitem__, pieces), np.int32, len(pieces))
            lengths = np.diff(np.flatnonzero(ids == EOS), prepend=-1) - 1
            sentences += len(lengths)
            empty += int(np.count_nonzero(lengths == 0))
            longest = max(longest, int(lengths.max()))
            tokens.append(ids)
    if not longest:
        raise UserError(
            f"{path}: no tokens in {sentences} lines; expected one sentence per line, tokens separated by spaces"
        )
    words = [*SPECIAL_WORDS, *(word.decode() for word in list(numbers)[len(SPECIAL_WORDS) :])]
    return Corpus(tokens.finish(), words, sentences, empty, longest)


def _blocks_of_lines(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield blocks of complete lines of a few megabytes. A missing newline at the end is added."""
    block = stream.read(_BLOCK_BYTES).removeprefix(_BOM)
    while block:
        block += stream.readline()
        yield block if block.endswith(b"\n") else block + b"\n"
        block = stream.read(_BLOCK_BYTES)


def _check(block: bytes, path: str, *, first_line: int, skip_symbols: bool) -> None:
    try:
        block.decode()
    except UnicodeDecodeError as error:
        line = first_line + block.count(b"\n", 0, error.start)
        raise UserError(
            f"{path}:{line}: not UTF-8 (byte 0x{block[error.start]:02x}); convert the file first, for example: "
            "iconv -f GB18030 -t UTF-8"
        ) from None
    if (at := block.find(b"\0")) >= 0:
        line = first_line + block.count(b"\n", 0, at)
        raise UserError(f"{path}:{line}: found a NUL byte, so this is not UTF-8 text. If it is UTF-16, use iconv")
    is_suspect = any(word.encode() in block for word in SPECIAL_WORDS)  # many times faster than the pattern
    if is_suspect and not skip_symbols and (found := _SPECIAL.search(block)):
        line = first_line + block.count(b"\n", 0, found.start())
        raise UserError(
            f"{path}:{line}: {found.group().decode()} is a special symbol of language models and can't be a token "
            "of the text; remove it, or use --skip_symbols to treat <s>, </s> and <unk> as spaces"
        )
