"""`decoder: linear_decoder`: one class for a whole utterance, with ESPnet2's options and parameter names.

The token list is `<blank>`, `<unk>`, the classes, and `<sos/eos>`; every text is one class.

Shapes: memory (batch, frames, size). In steps: U utterances, B beams.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from tympan.config.range import Range
from tympan.errors import UserError
from tympan.models.attention import Attended, Text
from tympan.models.encoder.output import EncoderOutput
from tympan.models.loss import Stat, count_of
from tympan.nn.beam_state import PER_UTTERANCE, BeamState
from tympan.nn.dropout import Dropout
from tympan.nn.full_precision import at_least_float32
from tympan.nn.masks import length_mask

FIRST_CLASS = 2
"""The tokens before it are blank and unknown."""
NEVER = -1e10
"""Log probability of a token that can't follow."""


@dataclass(frozen=True)
class ClassState(BeamState):
    """The tokens so far, and the log probabilities of the classes."""

    tokens: Tensor  # (U, B, length)
    log_probs: Tensor = field(metadata=PER_UTTERANCE)  # (U, vocabulary)


class LinearDecoder(nn.Module):
    """A linear layer on the mean, the maximum or the first (`CLS`) of the frames."""

    def __init__(
        self,
        *,
        vocab_size: int,
        encoder_output_size: int,
        pooling: Literal["mean", "max", "CLS"] = "mean",
        dropout: Annotated[float, Range(0, below=1)] = 0.0,
    ) -> None:
        super().__init__()
        if vocab_size <= FIRST_CLASS + 1:
            raise UserError("decoder: linear_decoder needs a token list with <blank>, <unk>, classes and <sos/eos>")
        self.vocab_size, self.pooling = vocab_size, pooling
        self.dropout = Dropout(dropout)
        self.linear_out = nn.Linear(encoder_output_size, vocab_size - FIRST_CLASS - 1)

    def classes(self, memory: Tensor, lengths: Tensor) -> Tensor:
        """Logits (batch, classes)."""
        mask = length_mask(lengths, memory.size(1)).unsqueeze(-1)
        memory = self.dropout(memory)
        if self.pooling == "CLS":
            pooled = memory[:, 0]
        elif self.pooling == "max":
            pooled = memory.masked_fill(~mask, torch.finfo(memory.dtype).min).amax(1)
        else:
            pooled = memory.masked_fill(~mask, 0.0).sum(1) / lengths.clamp(min=1).unsqueeze(1).to(memory.dtype)
        logits: Tensor = self.linear_out(pooled)
        return logits

    def attend(self, encoded: EncoderOutput, text: Text, *, eos: int, smoothing: float) -> Attended:
        """Cross entropy of the class, with label smoothing over the classes."""
        logits = at_least_float32(self.classes(encoded.out, encoded.lengths))
        if text.ids.size(1) != 1 or not bool((text.lengths == 1).all()):
            raise UserError("decoder: linear_decoder needs texts of one token, the class of the utterance")
        target = text.ids[:, 0] - FIRST_CLASS
        if bool(((target < 0) | (target >= logits.size(1))).any()):
            raise UserError("decoder: linear_decoder: a text is <blank>, <unk> or <sos/eos>, not a class")
        count = count_of(target.size(0), logits)
        best = logits.detach().argmax(-1)
        return Attended(
            total=nn.functional.cross_entropy(logits, target, label_smoothing=smoothing, reduction="sum"),
            count=count,
            accuracy=Stat((best == target).sum().float(), count),
            best=torch.stack([best + FIRST_CLASS, torch.full_like(best, eos)], dim=1),
        )

    def forward(self, memory: Tensor, memory_lengths: Tensor, ys_in: Tensor, ys_in_lengths: Tensor) -> Tensor:
        """Log probabilities (batch, length, vocabulary): a class, then the end."""
        first = self._log_probs(memory, memory_lengths).unsqueeze(1)
        return torch.cat([first, self._end(first).expand(-1, ys_in.size(1) - 1, -1)], dim=1)

    def start(self, memory: Tensor, memory_lengths: Tensor, beams: int) -> ClassState:
        """The state before any token: memory (U, frames, size)."""
        nothing = torch.zeros(memory.size(0), beams, 0, dtype=torch.long, device=memory.device)
        return ClassState(nothing, self._log_probs(memory, memory_lengths))

    def step(self, tokens: Tensor, state: ClassState) -> tuple[Tensor, ClassState]:
        """Log probabilities (U, B, vocabulary) of the token after `tokens` (U, B), which begin with sos."""
        log_probs = state.log_probs.unsqueeze(1).expand(-1, tokens.size(1), -1)
        after = ClassState(torch.cat([state.tokens, tokens.unsqueeze(2)], dim=2), state.log_probs)
        return log_probs if state.tokens.size(2) == 0 else self._end(log_probs), after

    def _log_probs(self, memory: Tensor, lengths: Tensor) -> Tensor:
        """(batch, vocabulary)."""
        found = at_least_float32(self.classes(memory, lengths)).log_softmax(-1)
        return nn.functional.pad(found, (FIRST_CLASS, 1), value=NEVER)

    @staticmethod
    def _end(like: Tensor) -> Tensor:
        """The last token is certain."""
        certain = torch.full_like(like, NEVER)
        certain[..., -1] = 0.0
        return certain
