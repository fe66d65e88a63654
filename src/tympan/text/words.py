"""Split a line into words. In text that is written without spaces, every character is a word."""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Iterable


def split_words(text: str) -> list[str]:
    """Split into words: `我们play游戏` gives 我, 们, play, 游, 戏."""
    return [part for run, is_dense in dense_runs(text) for part in (run if is_dense else [run])]


def dense_runs(text: str) -> list[tuple[str, bool]]:
    """Split into runs: `我们play 游戏` gives 我们, play, 游戏, each with whether it is written without spaces."""
    return [
        ("".join(characters), is_dense)
        for word in text.split()
        for is_dense, characters in itertools.groupby(word, key=is_unspaced)
    ]


def join_words(words: Iterable[str]) -> str:
    """Join words with spaces, but without spaces between characters of languages that use none."""
    text = ""
    for word in words:
        is_dense = bool(text) and is_unspaced(text[-1]) and is_unspaced(word[0])
        text += word if not text or is_dense else f" {word}"
    return text


def is_unspaced(character: str) -> bool:
    """Return whether this is a Chinese or Japanese character. Korean ones are as wide, but use spaces between words."""
    return is_wide(character) and "HANGUL" not in unicodedata.name(character, "")


def is_wide(character: str) -> bool:
    """Return whether the character is as wide as two letters."""
    return unicodedata.east_asian_width(character) in ("W", "F")
