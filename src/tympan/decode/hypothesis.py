"""What a recogniser answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tympan.data.kaldi_dir import Segment
from tympan.text.words import join_words


@dataclass(frozen=True)
class Hypothesis:
    """A text with its tokens; times, in seconds, and confidences, in [0, 1], where the model has CTC.

    A token's confidence is its highest CTC posterior in the frames it takes; the text's is the mean over its tokens.
    """

    text: str
    tokens: tuple[str, ...]
    token_ids: tuple[int, ...]
    score: float
    scores: dict[str, float]
    times: tuple[tuple[float, float], ...] | None = None
    token_confidences: tuple[float, ...] | None = None
    words: tuple[tuple[str, int], ...] | None = None
    """Words with how many of the tokens each takes, where tokens are phones."""

    @property
    def confidence(self) -> float | None:
        """None where there is nothing to be sure of."""
        if not self.token_confidences:
            return None
        return sum(self.token_confidences) / len(self.token_confidences)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**dataclasses.asdict(self), "confidence": self.confidence}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Hypothesis:
        """The inverse of `as_dict`."""
        times, confidences, words = values["times"], values["token_confidences"], values.get("words")
        return cls(
            text=values["text"],
            tokens=tuple(values["tokens"]),
            token_ids=tuple(values["token_ids"]),
            score=values["score"],
            scores=dict(values["scores"]),
            times=None if times is None else tuple((start, end) for start, end in times),
            token_confidences=None if confidences is None else tuple(confidences),
            words=None if words is None else tuple((word, count) for word, count in words),
        )


def join_hypotheses(parts: Sequence[tuple[Segment, Hypothesis]], *, separator: str) -> Hypothesis:
    """One answer for the whole recording from those of its segments; scores add up, texts are joined by `separator`."""
    answers = [hypothesis for _, hypothesis in parts]
    has_times = all(answer.times is not None for answer in answers)
    has_confidences = all(answer.token_confidences is not None for answer in answers)
    names = dict.fromkeys(name for answer in answers for name in answer.scores)
    words = None
    if all(answer.words is not None for answer in answers):
        words = tuple(word for answer in answers for word in answer.words or ())
    return Hypothesis(
        text=separator.join(answer.text for answer in answers if answer.text)
        if words is None
        else join_words(word for word, _ in words),
        tokens=tuple(token for answer in answers for token in answer.tokens),
        token_ids=tuple(number for answer in answers for number in answer.token_ids),
        score=sum(answer.score for answer in answers),
        scores={name: sum(answer.scores.get(name, 0.0) for answer in answers) for name in names},
        times=_shifted(parts) if has_times else None,
        token_confidences=tuple(value for answer in answers for value in answer.token_confidences or ())
        if has_confidences
        else None,
        words=words,
    )


def _shifted(parts: Sequence[tuple[Segment, Hypothesis]]) -> tuple[tuple[float, float], ...]:
    return tuple(
        (round(segment.start_s + start, 3), round(segment.start_s + end, 3))
        for segment, hypothesis in parts
        for start, end in hypothesis.times or ()
    )
