"""Words of a line, also where it is written without blanks: there every character is one."""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Iterable


def split_words(text: str) -> list[str]:
    """`我们play游戏` is 我, 们, play, 游, 戏."""
    return [part for run, is_dense in dense_runs(text) for part in (run if is_dense else [run])]


def dense_runs(text: str) -> list[tuple[str, bool]]:
    """`我们play 游戏` is 我们, play, 游戏; with each, whether it is written without blanks."""
    return [
        ("".join(characters), is_dense)
        for word in text.split()
        for is_dense, characters in itertools.groupby(word, key=is_unspaced)
    ]


def join_words(words: Iterable[str]) -> str:
    """Blanks between words, none between characters that are words by themselves."""
    text = ""
    for word in words:
        is_dense = bool(text) and is_unspaced(text[-1]) and is_unspaced(word[0])
        text += word if not text or is_dense else f" {word}"
    return text


def is_unspaced(character: str) -> bool:
    """Chinese and Japanese characters. Korean ones are as wide, but their words stand apart."""
    return is_wide(character) and "HANGUL" not in unicodedata.name(character, "")


def is_wide(character: str) -> bool:
    """Characters that take the room of two letters."""
    return unicodedata.east_asian_width(character) in ("W", "F")
