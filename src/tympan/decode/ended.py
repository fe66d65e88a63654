"""Hypotheses that ended: collecting them, knowing when no better one will come, and ranking them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

END_LENGTHS = 3
END_SCORE_DROP = 10.0


@dataclass(frozen=True)
class Ended:
    """One result of a search."""

    token_ids: tuple[int, ...]
    """Without sos and eos."""
    score: float
    scores: dict[str, float]
    """Of each scorer, before weighting."""
    words: tuple[tuple[str, int], ...] | None = None
    """Words with how many of the tokens each takes, where a lexicon says so."""
    is_ended_twice: bool = False
    """It ended by itself in the last step, where ESPnet2 gives every hypothesis an eos: its length counts both."""

    @property
    def length(self) -> int:
        """Tokens with sos and eos, as ESPnet2 counts a hypothesis."""
        return len(self.token_ids) + 2 + self.is_ended_twice

    def without(self, token_id: int) -> Ended:
        """The same with this token left out."""
        if token_id not in self.token_ids:
            return self
        return replace(self, token_ids=tuple(one for one in self.token_ids if one != token_id))


def is_end_detected(ended: Sequence[Ended], step: int) -> bool:
    """No hypothesis of the last three lengths came near the best one (Watanabe et al. 2017, equation 50)."""
    if not ended:
        return False
    best = max(hypothesis.score for hypothesis in ended)
    for length in range(step, step - END_LENGTHS, -1):
        scores = [hypothesis.score for hypothesis in ended if hypothesis.length == length]
        if not scores or max(scores) - best >= -END_SCORE_DROP:
            return False
    return True


def rank(ended: Sequence[Ended], *, is_length_normalized: bool) -> list[Ended]:
    """Best first; by the score of a token (eos counts as one) if lengths are to be normalised."""
    if is_length_normalized:
        return sorted(ended, key=lambda hypothesis: -hypothesis.score / (hypothesis.length - 1))
    return sorted(ended, key=lambda hypothesis: -hypothesis.score)
