"""Scorers: scores of the next token, for every hypothesis of every utterance at once.

The attention decoder, a neural language model and the length bonus are here; the CTC prefix score is in `ctc_prefix`,
the n-gram in `ngram_scorer`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from tympan.decode.search import Encoded
from tympan.models.lm.model import LanguageModel
from tympan.models.parts import StepDecoder
from tympan.nn.beam_state import STATIC, BeamState


class FullScorer(Protocol):
    """Scores the whole vocabulary: the attention decoder, a language model, the length bonus."""

    def start(self, encoded: Encoded, beams: int, /) -> BeamState: ...

    def step(self, tokens: Tensor, state: Any, /) -> tuple[Tensor, BeamState]:
        """Last token of each hypothesis (U, B), sos at first -> log scores (U, B, V) of the next token."""
        ...


class PartialScorer(Protocol):
    """Scores only selected candidates, because the whole vocabulary would take too long: the CTC prefix score."""

    def start(self, encoded: Encoded, beams: int, /) -> BeamState: ...

    def step(self, tokens: Tensor, state: Any, /, *, candidates: Tensor | None) -> tuple[Tensor, BeamState]:
        """Log scores (U, B, C) of the candidates (U, B, C), or of the whole vocabulary if None."""
        ...


class AttentionScorer:
    """log P(next token | prefix, speech) of the attention decoder."""

    def __init__(self, decoder: StepDecoder) -> None:
        self.decoder = decoder

    def start(self, encoded: Encoded, beams: int) -> BeamState:
        return self.decoder.start(encoded.memory, encoded.lengths.to(encoded.memory.device), beams)

    def step(self, tokens: Tensor, state: BeamState) -> tuple[Tensor, BeamState]:
        return self.decoder.step(tokens, state)


class LmScorer:
    """log P(next token | prefix) of a neural language model."""

    def __init__(self, lm: LanguageModel) -> None:
        self.lm = lm

    def start(self, encoded: Encoded, beams: int) -> BeamState:
        return self.lm.start(encoded.utterances, beams, encoded.memory.device, encoded.memory.dtype)

    def step(self, tokens: Tensor, state: BeamState) -> tuple[Tensor, BeamState]:
        return self.lm.step(tokens, state)


@dataclass(frozen=True)
class PlacedState(BeamState):
    """The state of a scorer on another device than the search."""

    state: BeamState
    device: torch.device = field(metadata=STATIC)

    def reorder(self, parents: Tensor) -> PlacedState:
        return PlacedState(self.state.reorder(parents.to(self.device)), self.device)

    def keep(self, utterances: Tensor) -> PlacedState:
        return PlacedState(self.state.keep(utterances.to(self.device)), self.device)


class PlacedScorer:
    """A scorer on the device of the model, for a search that runs on the host."""

    def __init__(self, scorer: FullScorer) -> None:
        self.scorer = scorer

    def start(self, encoded: Encoded, beams: int) -> PlacedState:
        return PlacedState(self.scorer.start(encoded, beams), encoded.memory.device)

    def step(self, tokens: Tensor, state: PlacedState) -> tuple[Tensor, PlacedState]:
        scores, after = self.scorer.step(tokens.to(state.device), state.state)
        return scores.to(tokens.device), PlacedState(after, state.device)


@dataclass(frozen=True)
class LengthBonusState(BeamState):
    """The number 1 in the right dtype and on the right device."""

    one: Tensor = field(metadata=STATIC)  # ()


class LengthBonus:
    """A score of 1 for every token, eos included."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def start(self, encoded: Encoded, beams: int) -> LengthBonusState:
        return LengthBonusState(one=torch.ones((), dtype=encoded.memory.dtype, device=encoded.lengths.device))

    def step(self, tokens: Tensor, state: LengthBonusState) -> tuple[Tensor, LengthBonusState]:
        return state.one.expand(*tokens.shape, self.vocab_size), state
