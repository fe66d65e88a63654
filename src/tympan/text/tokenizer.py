"""Tokenizers that split a line of text into tokens and join tokens to text (char, word, bpe, phn)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from tympan.errors import UserError
from tympan.files import read_text

TOKEN_TYPES = ("char", "word", "bpe", "phn", "whisper_en", "whisper_multilingual", "hugging_face")
SPACE = "<space>"

Symbols = str | os.PathLike[str] | Iterable[str] | None
"""Non-linguistic symbols: a file with one symbol per line, or the symbols themselves."""


class Tokenizer(Protocol):
    """Interface of all tokenizers. A tokenizer must be picklable, since worker processes use it."""

    @property
    def space_symbol(self) -> str | None:
        """The token that represents a space, or None if tokens are words or contain spaces."""
        ...

    def text2tokens(self, line: str) -> list[str]: ...

    def tokens2text(self, tokens: Iterable[str]) -> str: ...


def build_tokenizer(
    token_type: str,
    *,
    bpemodel: str | os.PathLike[str] | None = None,
    non_linguistic_symbols: Symbols = None,
    remove_non_linguistic_symbols: bool = False,
    space_symbol: str = SPACE,
    delimiter: str | None = None,
    g2p_type: str | None = None,
    nonsplit_symbols: Iterable[str] | None = None,
) -> Tokenizer:
    """Build a tokenizer. The arguments are ESPnet2's options."""
    if token_type == "char":
        return CharTokenizer(
            non_linguistic_symbols=non_linguistic_symbols,
            space_symbol=space_symbol,
            remove_non_linguistic_symbols=remove_non_linguistic_symbols,
            nonsplit_symbols=nonsplit_symbols,
        )
    if token_type == "word":
        removed = non_linguistic_symbols if remove_non_linguistic_symbols else None
        return WordTokenizer(delimiter=delimiter, removed_symbols=removed)
    if token_type == "bpe":
        if bpemodel is None:
            raise UserError(
                "token_type bpe needs --bpemodel, a sentencepiece model (train one with `tympan spm_train`)"
            )
        if remove_non_linguistic_symbols:
            raise UserError(
                "remove_non_linguistic_symbols can't be used with token_type bpe, only with char, word and phn"
            )
        from tympan.text.sentencepiece import BpeTokenizer

        return BpeTokenizer(bpemodel)
    if token_type == "hugging_face":
        from tympan.text.hugging_face import HuggingFaceTokenizer

        return HuggingFaceTokenizer(None if bpemodel is None else Path(bpemodel))
    if token_type in TOKEN_TYPES[4:]:
        from tympan.text.whisper import WhisperTokenizer, find_vocabulary

        return WhisperTokenizer(find_vocabulary(None if bpemodel is None else Path(bpemodel), token_type), token_type)
    if token_type == "phn":
        from tympan.text.phonemes import PhonemeTokenizer

        return PhonemeTokenizer(
            g2p_type,
            non_linguistic_symbols=non_linguistic_symbols,
            space_symbol=space_symbol,
            remove_non_linguistic_symbols=remove_non_linguistic_symbols,
        )
    raise UserError(f"token_type '{token_type}': must be one of {', '.join(TOKEN_TYPES)}")


class CharTokenizer:
    """One token per character. Non-linguistic symbols such as `<noise>` are one token, and a space is `<space>`."""

    def __init__(
        self,
        *,
        non_linguistic_symbols: Symbols = None,
        space_symbol: str = SPACE,
        remove_non_linguistic_symbols: bool = False,
        nonsplit_symbols: Iterable[str] | None = None,
    ) -> None:
        self.space_symbol = space_symbol
        # Both kinds are single tokens, but only the first can be removed. ESPnet2 writes the second as SYMBOL:POSITION.
        removable = read_symbols(non_linguistic_symbols)
        whole = frozenset(symbol.rpartition(":")[0] or symbol for symbol in nonsplit_symbols or ())
        self.symbols = removable | whole
        self.removed = removable - whole if remove_non_linguistic_symbols else frozenset()
        # If one symbol starts with another, the longer one is matched (in ESPnet2, it depends on the order of a set).
        longest_first = sorted(self.symbols, key=len, reverse=True)
        self._pattern = re.compile("|".join([*map(re.escape, longest_first), "."]), re.DOTALL)

    def text2tokens(self, line: str) -> list[str]:
        if not self.symbols:
            return [self.space_symbol if char == " " else char for char in line]
        tokens = self._pattern.findall(line)
        return [self.space_symbol if token == " " else token for token in tokens if token not in self.removed]

    def tokens2text(self, tokens: Iterable[str]) -> str:
        return "".join(" " if token == self.space_symbol else token for token in tokens)


class WordTokenizer:
    """One token per word, split at whitespace or at `delimiter`."""

    space_symbol: None = None

    def __init__(self, *, delimiter: str | None = None, removed_symbols: Symbols = None) -> None:
        self.delimiter = delimiter
        self.removed = read_symbols(removed_symbols)

    def text2tokens(self, line: str) -> list[str]:
        return [word for word in line.split(self.delimiter) if word not in self.removed]

    def tokens2text(self, tokens: Iterable[str]) -> str:
        return (" " if self.delimiter is None else self.delimiter).join(tokens)


def read_symbols(symbols: Symbols) -> frozenset[str]:
    """Read the symbols from a file (one per line), or return those given."""
    if symbols is None:
        return frozenset()
    if isinstance(symbols, (str, os.PathLike)):
        try:
            text = read_text(symbols)
        except UserError as error:
            raise UserError(f"non_linguistic_symbols: {error}") from None
        symbols = [line.strip() for line in text.splitlines()]
    return frozenset(symbol for symbol in symbols if symbol)
