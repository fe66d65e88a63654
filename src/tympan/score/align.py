"""Alignment of a hypothesis with its reference, as sclite aligns them."""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

SUBSTITUTION_COST = 4
GAP_COST = 3
"""sclite's cost of a deletion and of an insertion."""

Kind = Literal["C", "S", "D", "I"]

_TO_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_TO_UPPER = str.maketrans(string.ascii_lowercase, string.ascii_uppercase)
_DIAGONAL, _INSERTION, _DELETION = range(3)


@dataclass(frozen=True)
class Step:
    """One column of an alignment. `ref` is None for an insertion, `hyp` for a deletion."""

    kind: Kind
    ref: str | None
    hyp: str | None


@dataclass(frozen=True)
class Counts:
    """Numbers of correct and wrong tokens and sentences; counts can be added."""

    correct: int = 0
    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0
    sentences: int = 0
    wrong_sentences: int = 0

    @property
    def words(self) -> int:
        """Number of tokens in the reference."""
        return self.correct + self.substitutions + self.deletions

    @property
    def errors(self) -> int:
        return self.substitutions + self.deletions + self.insertions

    @property
    def error_rate(self) -> float:
        """Errors per reference token, in percent (0 if both sides are empty)."""
        return percent(self.errors, self.words)

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.correct + other.correct,
            self.substitutions + other.substitutions,
            self.deletions + other.deletions,
            self.insertions + other.insertions,
            self.sentences + other.sentences,
            self.wrong_sentences + other.wrong_sentences,
        )


def percent(part: int, whole: int) -> float:
    """100 * part / whole. If whole is 0: 0 if part is 0 as well, else 100."""
    if whole == 0:
        return 100.0 if part else 0.0
    return 100.0 * part / whole


def align(ref: Sequence[str], hyp: Sequence[str], *, case_sensitive: bool = False) -> list[Step]:
    """The alignment with the lowest cost; among equals the one that sclite finds.

    Tracing back from the end it prefers the diagonal, then an insertion, then a deletion. ASCII case does not count
    unless `case_sensitive`.
    """
    ref_keys, hyp_keys = (
        list(side) if case_sensitive else [ascii_lower(token) for token in side] for side in (ref, hyp)
    )
    moves = _moves(ref_keys, hyp_keys)
    steps: list[Step] = []
    i, j = len(ref), len(hyp)
    while i or j:
        move = moves[i, j]
        if move == _DIAGONAL:
            i, j = i - 1, j - 1
            steps.append(Step("C" if ref_keys[i] == hyp_keys[j] else "S", ref[i], hyp[j]))
        elif move == _INSERTION:
            j -= 1
            steps.append(Step("I", None, hyp[j]))
        else:
            i -= 1
            steps.append(Step("D", ref[i], None))
    return steps[::-1]


def count(steps: Iterable[Step]) -> Counts:
    """The counts of one aligned sentence."""
    kinds = [step.kind for step in steps]
    correct, substitutions, deletions, insertions = (kinds.count(kind) for kind in ("C", "S", "D", "I"))
    wrong = int(substitutions + deletions + insertions > 0)
    return Counts(correct, substitutions, deletions, insertions, 1, wrong)


def ascii_lower(token: str) -> str:
    """Lower case for A to Z only: sclite leaves É unchanged."""
    return token.lower() if token.isascii() else token.translate(_TO_LOWER)


def ascii_upper(token: str) -> str:
    """Upper case for a to z only."""
    return token.upper() if token.isascii() else token.translate(_TO_UPPER)


def _moves(ref: list[str], hyp: list[str]) -> NDArray[np.uint8]:
    """(ref + 1, hyp + 1): the last move of the cheapest path to the first i reference and j hypothesis tokens.

    Within a row, costs depend on each other only through insertions. After subtracting 3 * j this is a running minimum,
    so each row takes a few array operations. Moves take one byte each, so an hour-long utterance fits into memory.
    """
    ids: dict[str, int] = {}
    ref_ids, hyp_ids = (np.array([ids.setdefault(token, len(ids)) for token in side]) for side in (ref, hyp))
    ramp = GAP_COST * np.arange(len(hyp) + 1)
    moves = np.full((len(ref) + 1, len(hyp) + 1), _DELETION, dtype=np.uint8)
    moves[0] = _INSERTION
    cost = ramp
    for i in range(1, len(ref) + 1):
        diagonal = cost[:-1] + np.where(hyp_ids == ref_ids[i - 1], 0, SUBSTITUTION_COST)
        row = cost + GAP_COST
        row[1:] = np.minimum(row[1:], diagonal)
        cost = np.minimum.accumulate(row - ramp) + ramp
        # sclite prefers the diagonal, then an insertion.
        moves[i, 1:][cost[1:] == cost[:-1] + GAP_COST] = _INSERTION
        moves[i, 1:][cost[1:] == diagonal] = _DIAGONAL
    return moves
