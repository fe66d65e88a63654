"""A pronunciation lexicon: words as sequences of phones, in the format of Kaldi, CMU and AISHELL (`WORD P1 P2 ...`)."""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from tympan.errors import UserError
from tympan.files import read_text
from tympan.text.vocabulary import UNK
from tympan.text.words import dense_runs, split_words

Phones = tuple[str, ...]

_VARIANT = re.compile(r"(?<=.)\(\d+\)$")
_COMMENT = re.compile(r"^(;;;|##).*|\s#\s.*")
_PROBABILITY = re.compile(r"\d*\.\d+(e-?\d+)?")


@dataclass(frozen=True)
class Lexicon:
    """All pronunciations of each word. The first one is used for training."""

    pronunciations: Mapping[str, tuple[Phones, ...]]
    source: str

    def text2phones(self, text: str) -> list[str]:
        """Return the phones of a line."""
        return [phone for _, phones in self.text2words(text) for phone in phones]

    def text2words(self, text: str) -> list[tuple[str, Phones]]:
        """Return the words of a line with their phones. A word that is not in the lexicon has the phone `<unk>`.

        If the language is written without spaces, such a word is split into the longest words of the lexicon, or into
        characters of other words.
        """
        return [part for word in text.split() for part in self._parts(word)]

    def missing_words(self, sentences: Iterable[str]) -> tuple[Counter[str], int]:
        """Return the words of the sentences that are not in the lexicon, and the number of all their words."""
        words = [item for sentence in sentences for item in self.text2words(sentence)]
        return Counter(word for word, phones in words if phones == (UNK,)), len(words)

    def text2units(self, text: str) -> list[str]:
        """Return the units of an n-gram model for this lexicon: characters if words can be split, else words."""
        return split_words(text) if self._has_tones else [word for word, _ in self.text2words(text)]

    def _parts(self, word: str) -> Iterator[tuple[str, Phones]]:
        if word in self.pronunciations:
            yield word, self.pronunciations[word][0]
            return
        for run, is_dense in dense_runs(word):
            if is_dense:
                yield from self._cut(run)
            else:
                yield run, self.pronunciations.get(run, ((UNK,),))[0]

    def _cut(self, run: str) -> Iterator[tuple[str, Phones]]:
        while run:
            for length in range(min(len(run), self._longest), 0, -1):
                found = self.pronunciations.get(run[:length]) or self._characters.get(run[:length])
                if found is not None:
                    yield run[:length], found[0]
                    break
            else:
                length = 1
                yield run[0], (UNK,)
            run = run[length:]

    def by_character(self, known: Collection[str]) -> Lexicon:
        """Split words that are not in `known`, the units of a language model, into characters of one syllable each.

        Words whose number of syllables differs from the number of characters are not split.
        """
        found: dict[str, dict[Phones, None]] = {}
        for word, variants in self.pronunciations.items():
            parts = [word] if word in known else split_words(word)
            for phones in variants:
                shares = _syllables(phones)
                if len(parts) == 1 or len(shares) != len(parts):
                    found.setdefault(word, {})[phones] = None
                    continue
                for part, share in zip(parts, shares, strict=True):
                    found.setdefault(part, {})[share] = None
        return Lexicon({word: tuple(variants) for word, variants in found.items()}, self.source)

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self.pronunciations))

    @cached_property
    def _has_tones(self) -> bool:
        return any(_syllables(phones) for variants in self.pronunciations.values() for phones in variants)

    @cached_property
    def _characters(self) -> Mapping[str, tuple[Phones, ...]]:
        return self.by_character(()).pronunciations


def _syllables(phones: Phones) -> list[Phones]:
    """Split into Chinese syllables, each of which ends with its tone: y in2 h ang2."""
    ends = [place for place, phone in enumerate(phones, 1) if phone[-1].isdigit()]
    if ends[-1:] != [len(phones)]:
        return []
    return [phones[start:end] for start, end in itertools.pairwise([0, *ends])]


def read_lexicon(path: str | os.PathLike[str]) -> Lexicon:
    """Read lines `WORD P1 P2 ...`. A second line for a word, or `WORD(2)`, is another pronunciation."""
    name = os.fspath(path)
    lines = read_text(path, kind="lexicon", encoding="utf-8-sig").splitlines()
    found: dict[str, dict[Phones, None]] = {}
    for number, line in enumerate(lines, 1):
        fields = _COMMENT.sub("", line).split()
        if not fields:
            continue
        word, *phones = fields
        if not phones:
            raise UserError(f"{name}:{number}: expected WORD P1 P2 ..., found only '{word}'")
        if _PROBABILITY.fullmatch(phones[0]):
            raise UserError(
                f"{name}:{number}: '{phones[0]}' is a probability. Use Kaldi's lexicon.txt instead of lexiconp.txt"
            )
        found.setdefault(_VARIANT.sub("", word), {})[tuple(phones)] = None
    if not found:
        raise UserError(f"{name}: the lexicon is empty")
    return Lexicon({word: tuple(variants) for word, variants in found.items()}, name)
