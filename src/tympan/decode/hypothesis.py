"""The results of a recognizer: hypotheses and encodings."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from tympan.data.kaldi_dir import Segment
from tympan.decode.words import Word, words_of
from tympan.text.tokenizer import SPACE
from tympan.text.words import join_words

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Hypothesis:
    """One transcript of a recording. `recognizer(audio)` returns the best one, `recognizer(audio, nbest=5)` a list.

    Times and confidences need a model with CTC, and only the best hypothesis has them. Those of a transducer's searches
    are the frames and probabilities with which its tokens were emitted, and every hypothesis has them.
    """

    text: str
    tokens: tuple[str, ...]
    token_ids: tuple[int, ...]
    score: float
    """Weighted sum of `scores`, by which hypotheses are ranked."""
    scores: dict[str, float]
    """Score of each part of the model: `decoder`, `ctc`, `lm`, `ngram`, ..."""
    times: tuple[tuple[float, float], ...] | None = None
    """Start and end of each token in seconds from the beginning of the recording."""
    token_confidences: tuple[float, ...] | None = None
    """The highest CTC posterior of each token in its frames, or its probability in a transducer's search, 0 to 1."""
    words: tuple[tuple[str, int], ...] | None = None
    """Words with the number of tokens of each, where tokens are phones of a lexicon."""
    space_symbol: str = SPACE
    """The token that represents a space."""
    speaker: int | None = None
    """Number of the speaker from 1, if the model recognizes several speakers. The order of speakers has no meaning."""

    @property
    def confidence(self) -> float | None:
        """Mean confidence of the tokens, 0 to 1; None without tokens or times."""
        if not self.token_confidences:
            return None
        return sum(self.token_confidences) / len(self.token_confidences)

    @property
    def word_times(self) -> list[Word]:
        """Words with start, end and confidence, for every token type; empty if the model gives no times."""
        return words_of(self)

    def to_dict(self) -> dict[str, Any]:
        """A flat row for `pandas.DataFrame([hypothesis.to_dict(), ...])`: numbers, strings and lists of these.

        The score of each part of the model is a column `score_NAME`.
        """
        words = self.word_times if self.times is not None else None
        return {
            "text": self.text,
            **({} if self.speaker is None else {"speaker": self.speaker}),
            "score": self.score,
            **{f"score_{name}": value for name, value in self.scores.items()},
            "confidence": self.confidence,
            "tokens": list(self.tokens),
            "token_ids": list(self.token_ids),
            "token_start_s": None if self.times is None else [start for start, _ in self.times],
            "token_end_s": None if self.times is None else [end for _, end in self.times],
            "token_confidences": None if self.token_confidences is None else list(self.token_confidences),
            "words": None if words is None else [word.text for word in words],
            "word_start_s": None if words is None else [word.start_s for word in words],
            "word_end_s": None if words is None else [word.end_s for word in words],
        }

    def as_dict(self) -> dict[str, Any]:
        """Every field, for JSON; `from_dict` reads it. `speaker` only if the model recognizes several speakers."""
        values = {**dataclasses.asdict(self), "confidence": self.confidence}
        if self.speaker is None:
            del values["speaker"]
        return values

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
            space_symbol=values.get("space_symbol", SPACE),
            speaker=values.get("speaker"),
        )


def by_speaker(hypotheses: Iterable[Hypothesis]) -> list[list[Hypothesis]]:
    """The n-best list of each speaker of a recording; only one list if the model recognizes a single speaker."""
    return [list(ranked) for _, ranked in groupby(hypotheses, key=lambda hypothesis: hypothesis.speaker)]


def by_recording(ranked: Sequence[list[Hypothesis]], speakers: int | None) -> list[list[Hypothesis]]:
    """Join the n-best lists of the speakers of each recording. `speakers` None: each list belongs to one recording."""
    if speakers is None:
        return list(ranked)
    numbers = range(1, speakers + 1)
    return [
        [
            dataclasses.replace(hypothesis, speaker=number)
            for number, hypotheses in zip(numbers, ranked[first : first + speakers], strict=True)
            for hypothesis in hypotheses
        ]
        for first in range(0, len(ranked), speakers)
    ]


@dataclass(frozen=True)
class Encoding:
    """The encoder's output for one recording, from `recognizer.encode(audio)`."""

    out: Tensor
    """(frames, size)"""
    ctc_log_probs: Tensor | None
    """(frames, tokens); None for a model without CTC."""
    frame_shift_s: float
    """Seconds between two frames."""


def join_hypotheses(parts: Sequence[tuple[Segment, Hypothesis]], *, separator: str) -> Hypothesis:
    """Join the hypotheses of a recording's segments into one: scores are added, texts are joined by `separator`."""
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
        space_symbol=answers[0].space_symbol,
    )


def _shifted(parts: Sequence[tuple[Segment, Hypothesis]]) -> tuple[tuple[float, float], ...]:
    return tuple(
        (round(segment.start_s + start, 3), round(segment.start_s + end, 3))
        for segment, hypothesis in parts
        for start, end in hypothesis.times or ()
    )
