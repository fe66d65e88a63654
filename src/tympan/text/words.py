"""Words of a line, also where it is written without blanks: there every character is one."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable


def split_words(text: str) -> list[str]:
    """`我们play游戏` is 我, 们, play, 游, 戏."""
    parts: list[str] = []
    for word in text.split():
        is_open = False
        for character in word:
            if is_open and not is_wide(character):
                parts[-1] += character
            else:
                parts.append(character)
            is_open = not is_wide(character)
    return parts


def join_words(words: Iterable[str]) -> str:
    """Blanks between words, none between characters that are words by themselves."""
    text = ""
    for word in words:
        is_dense = bool(text) and is_wide(text[-1]) and is_wide(word[0])
        text += word if not text or is_dense else f" {word}"
    return text


def is_wide(character: str) -> bool:
    """Chinese, Japanese and Korean characters, which take the room of two letters."""
    return unicodedata.east_asian_width(character) in ("W", "F")
