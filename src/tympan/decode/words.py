"""The words of a hypothesis with their times, from the times of its tokens."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tympan.text.words import split_words

if TYPE_CHECKING:
    from tympan.decode.hypothesis import Hypothesis

WORD_BEGIN = "▁"


@dataclass(frozen=True)
class Word:
    """A word, or a character of a language that is written without spaces."""

    text: str
    start_s: float
    end_s: float
    confidence: float
    is_apart: bool = True
    """Whether the text has a space before it."""

    def to_dict(self) -> dict[str, str | float]:
        """`word`, `start_s`, `end_s` and `confidence`, as in JSON."""
        return {"word": self.text, "start_s": self.start_s, "end_s": self.end_s, "confidence": self.confidence}


def words_of(hypothesis: Hypothesis) -> list[Word]:
    """Words with the times of their tokens; empty if the model gave no times."""
    times, confidences = hypothesis.times, hypothesis.token_confidences
    if times is None or confidences is None:
        return []
    return [
        Word(
            text=text,
            start_s=_within(times[shares[0].index], shares[0].begin),
            end_s=_within(times[shares[-1].index], shares[-1].end),
            confidence=sum(confidences[share.index] for share in shares) / len(shares),
            is_apart=is_apart,
        )
        for text, is_apart, shares in _group(hypothesis, hypothesis.space_symbol)
    ]


@dataclass(frozen=True)
class _Share:
    """The part of a token that belongs to a word: from `begin` to `end`, as fractions of 1."""

    index: int
    begin: float = 0.0
    end: float = 1.0


def _group(hypothesis: Hypothesis, space: str) -> list[tuple[str, bool, list[_Share]]]:
    """(word, whether a space precedes it, its tokens)."""
    if hypothesis.words is not None:
        indices = iter(range(len(hypothesis.tokens)))
        words = [word for word, _ in hypothesis.words]
        shares = [[_Share(index) for index in itertools.islice(indices, count)] for _, count in hypothesis.words]
        return _zipped(words, _blanks(hypothesis.text, words), shares)
    # Whisper's tokens begin with a space themselves
    surfaces = ["" if token == space else token.replace(WORD_BEGIN, "").strip(" ") for token in hypothesis.tokens]
    words = split_words(hypothesis.text)
    if "".join(surfaces) != "".join(words):
        return _group_of_changed_letters(hypothesis, surfaces, words, space)
    return _zipped(words, _blanks(hypothesis.text, words), _shared(words, surfaces))


def _group_of_changed_letters(
    hypothesis: Hypothesis, surfaces: Sequence[str], words: Sequence[str], space: str
) -> list[tuple[str, bool, list[_Share]]]:
    """Words of tokens that are not the letters of the text, such as bytes of rare characters, or phones.

    A new word begins at every token that marks a beginning. If this gives another number of words than the text has,
    each token is a word of its own.
    """
    begins = _begins(hypothesis.tokens, space)
    shares: list[list[_Share]] = []
    for index, surface in enumerate(surfaces):
        if not surface:
            continue
        if not shares or (begins[index] and len(words) > 1):
            shares.append([])
        shares[-1].append(_Share(index))
    if len(shares) == len(words):
        return _zipped(words, _blanks(hypothesis.text, words), shares)
    return [(surface, begins[index], [_Share(index)]) for index, surface in enumerate(surfaces) if surface]


def _zipped(
    words: Sequence[str], spaces: Sequence[bool], shares: Sequence[list[_Share]]
) -> list[tuple[str, bool, list[_Share]]]:
    return [group for group in zip(words, spaces, shares, strict=True) if group[2]]


def _shared(words: Sequence[str], surfaces: Sequence[str]) -> list[list[_Share]]:
    """The tokens of each word. A token that spans several words is divided between them by number of letters."""
    letters = ((index, letter) for index, surface in enumerate(surfaces) for letter in range(len(surface)))
    shares = []
    for word in words:
        runs = itertools.groupby(itertools.islice(letters, len(word)), key=lambda letter: letter[0])
        taken = [(index, [letter for _, letter in run]) for index, run in runs]
        shares.append(
            [_Share(index, run[0] / len(surfaces[index]), (run[-1] + 1) / len(surfaces[index])) for index, run in taken]
        )
    return shares


def _blanks(text: str, words: Sequence[str]) -> list[bool]:
    """Whether the text has a space before each of its words."""
    spaces, position = [], 0
    for word in words:
        found = text.find(word, position)
        spaces.append(found <= 0 or text[found - 1].isspace())
        position = max(position, found + len(word))
    return spaces


def _begins(tokens: Sequence[str], space: str) -> list[bool]:
    """Whether a word begins with each token. If no token marks a beginning, as with phones, all do."""
    marks = (WORD_BEGIN, " ")
    if not any(token == space or token.startswith(marks) for token in tokens):
        return [True] * len(tokens)
    before = [space, *tokens]
    return [before[index] in (space, WORD_BEGIN) or token.startswith(marks) for index, token in enumerate(tokens)]


def _within(times: tuple[float, float], share: float) -> float:
    return round(times[0] + share * (times[1] - times[0]), 3)
