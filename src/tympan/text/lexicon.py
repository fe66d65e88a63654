"""A pronunciation lexicon: words as sequences of phones, as Kaldi, CMU and AISHELL write them (`WORD P1 P2 ...`)."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tympan.errors import UserError
from tympan.text.vocabulary import UNK
from tympan.text.words import split_words

Phones = tuple[str, ...]

_VARIANT = re.compile(r"\(\d+\)$")
_COMMENTS = (";;;", "##")


@dataclass(frozen=True)
class Lexicon:
    """All pronunciations of each word, the one to train with first."""

    pronunciations: Mapping[str, tuple[Phones, ...]]
    source: str

    @cached_property
    def longest(self) -> int:
        return max(map(len, self.pronunciations))

    def text2phones(self, text: str) -> list[str]:
        """The phones of a line."""
        return [phone for _, phones in self.text2words(text) for phone in phones]

    def text2words(self, text: str) -> list[tuple[str, Phones]]:
        """The words of a line with their phones. A word that is not here is cut into the longest words that are, since
        Chinese is written without blanks, or into characters of others; what is in none of them is unknown.
        """
        return [part for word in text.split() for part in self._parts(word)]

    @cached_property
    def _characters(self) -> Mapping[str, tuple[Phones, ...]]:
        return self.by_character(()).pronunciations

    def _parts(self, word: str) -> Iterator[tuple[str, Phones]]:
        while word:
            for length in range(min(len(word), self.longest), 0, -1):
                found = self.pronunciations.get(word[:length]) or self._characters.get(word[:length])
                if found is not None:
                    yield word[:length], found[0]
                    break
            else:
                length = 1
                yield word[0], (UNK,)
            word = word[length:]

    def by_character(self, known: Collection[str]) -> Lexicon:
        """Words that a language model of characters does not know, cut into characters with a syllable each. What
        has another number of syllables is left out.
        """
        found: dict[str, dict[Phones, None]] = {}
        for word, variants in self.pronunciations.items():
            parts = [word] if word in known else split_words(word)
            for phones in variants:
                shares = [phones] if len(parts) == 1 else _syllables(phones)
                if len(shares) == len(parts):
                    for part, share in zip(parts, shares, strict=True):
                        found.setdefault(part, {})[share] = None
        return Lexicon({word: tuple(variants) for word, variants in found.items()}, self.source)


def _syllables(phones: Phones) -> list[Phones]:
    """A Chinese syllable ends with its tone: y in2 h ang2."""
    ends = [place for place, phone in enumerate(phones, 1) if phone[-1].isdigit()]
    return [phones[start:end] for start, end in itertools.pairwise([0, *ends])]


def read_lexicon(path: str | os.PathLike[str]) -> Lexicon:
    """`WORD P1 P2 ...` a line; a second line for a word, or `WORD(2)`, is another pronunciation of it."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise UserError(f"{os.fspath(path)}: no such lexicon") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{os.fspath(path)}: a lexicon is text in UTF-8; byte {error.start} is not") from None
    found: dict[str, dict[Phones, None]] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith(_COMMENTS):
            continue
        word, *phones = line.split()
        if not phones:
            raise UserError(f"{os.fspath(path)}:{number}: expected WORD P1 P2 ..., found only '{word}'")
        found.setdefault(_VARIANT.sub("", word), {})[tuple(phones)] = None
    if not found:
        raise UserError(f"{os.fspath(path)}: the lexicon is empty")
    return Lexicon({word: tuple(variants) for word, variants in found.items()}, os.fspath(path))
