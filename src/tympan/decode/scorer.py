"""What the search asks of a scorer: scores of the next token, for every hypothesis of every utterance at once.

Shapes in this room: U utterances, B beams (hypotheses of an utterance), C candidates, V vocabulary, T encoder frames.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from tympan.nn.beam_state import BeamState


@dataclass(frozen=True)
class Encoded:
    """A batch of encoded utterances: what every scorer starts from."""

    memory: Tensor  # (U, T, dim)
    lengths: Tensor  # (U,)
    log_probs: Tensor | None = None
    """CTC log posteriors (U, T, V), where the model has CTC."""

    @property
    def utterances(self) -> int:
        return self.memory.size(0)

    def select(self, index: Tensor) -> Encoded:
        """Only these utterances, without the padding that they no longer need."""
        lengths = self.lengths[index]
        frames = int(lengths.max())
        log_probs = None if self.log_probs is None else self.log_probs[index, :frames]
        return Encoded(memory=self.memory[index, :frames], lengths=lengths, log_probs=log_probs)


class FullScorer(Protocol):
    """Scores the whole vocabulary: the attention decoder, a language model, the length bonus."""

    def start(self, encoded: Encoded, beams: int) -> BeamState: ...

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Tokens (U, B), the last of each hypothesis, sos at first -> log scores (U, B, V) of what may follow."""
        ...


class PartialScorer(Protocol):
    """Scores pre-selected candidates alone, because the whole vocabulary would cost too much: the CTC prefix score."""

    def start(self, encoded: Encoded, beams: int) -> BeamState: ...

    def step(self, tokens: Tensor, state: Any, *, candidates: Tensor | None) -> tuple[Tensor, Any]:
        """Log scores (U, B, C) of the candidates (U, B, C), of the whole vocabulary if there are none."""
        ...
