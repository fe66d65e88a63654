"""Scorers of the whole vocabulary: the attention decoder, a neural language model, the length bonus."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from tympan.decode.scorer import Encoded
from tympan.nn.beam_state import STATIC, BeamState


class StepDecoder(Protocol):
    """What AttentionScorer needs of a decoder."""

    def start(self, memory: Tensor, memory_lengths: Tensor, beams: int) -> BeamState: ...

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]: ...


class StepLm(Protocol):
    """What LmScorer needs of a language model."""

    def start(self, utterances: int, beams: int, device: torch.device, dtype: torch.dtype) -> BeamState: ...

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]: ...


class AttentionScorer:
    """log P(next token | prefix, speech) of the attention decoder."""

    def __init__(self, decoder: StepDecoder) -> None:
        self.decoder = decoder

    def start(self, encoded: Encoded, beams: int) -> BeamState:
        return self.decoder.start(encoded.memory, encoded.lengths, beams)

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        return self.decoder.step(tokens, state)


class LmScorer:
    """log P(next token | prefix) of a neural language model."""

    def __init__(self, lm: StepLm) -> None:
        self.lm = lm

    def start(self, encoded: Encoded, beams: int) -> BeamState:
        return self.lm.start(encoded.utterances, beams, encoded.memory.device, encoded.memory.dtype)

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        return self.lm.step(tokens, state)


@dataclass(frozen=True)
class LengthBonusState(BeamState):
    """One, of the right type and place."""

    one: Tensor = field(metadata=STATIC)  # ()


class LengthBonus:
    """One for every token, eos included."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def start(self, encoded: Encoded, beams: int) -> LengthBonusState:
        return LengthBonusState(one=encoded.memory.new_ones(()))

    def step(self, tokens: Tensor, state: LengthBonusState) -> tuple[Tensor, LengthBonusState]:
        return state.one.expand(*tokens.shape, self.vocab_size), state
