"""The language model as used by training and scoring: from text to a loss per token."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tympan.config.range import Range
from tympan.models.loss import PERPLEXITY, Loss, LossTerm, Stat
from tympan.models.parts import NextTokenModel
from tympan.nn.beam_state import BeamState


class LanguageModel(nn.Module):
    """Predicts each token of a sentence, and its end, from the previous tokens."""

    def __init__(
        self,
        lm: NextTokenModel,
        *,
        vocab_size: int,
        ignore_id: Annotated[int, Range(-1_000_000, 1_000_000)] = 0,
        length_normalized_loss: bool = True,
    ) -> None:
        super().__init__()
        self.lm = lm
        self.vocab_size = vocab_size
        # ESPnet2's convention: the last symbol of the list both begins and ends a sentence.
        self.sos = vocab_size - 1
        self.eos = vocab_size - 1
        # Shared with the CTC blank, which never occurs in a text.
        self.ignore_id = ignore_id
        self.length_normalized_loss = length_normalized_loss

    def forward(self, text: Tensor, text_lengths: Tensor) -> Loss:
        """The loss is per token (the end counts as one), and its exponential is the perplexity.

        Without `length_normalized_loss`, the gradients are of the loss per sentence. The statistics stay per token.
        """
        nll, lengths = self.nll(text, text_lengths)
        total, tokens = nll.sum(), lengths.sum()
        mean = Stat(total=total.detach(), count=tokens)
        count = tokens if self.length_normalized_loss else tokens.new_tensor(len(lengths))
        return Loss(terms=(LossTerm(total=total, count=count),), stats={"loss": mean, PERPLEXITY: mean})

    def collect_feats(self, text: Tensor, text_lengths: Tensor) -> dict[str, Tensor]:
        """Text has no features to collect statistics of."""
        return {}

    def nll(self, text: Tensor, text_lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Negative log-likelihood of each token and the end, (batch, length + 1), zero in the padding; the lengths.

        Text (batch, length) may be padded with any value and to any length; the returned lengths count the end.
        """
        positions = torch.arange(text.size(1) + 1, device=text.device)
        is_text = positions[:-1] < text_lengths.unsqueeze(1)
        text = text.masked_fill(~is_text, self.ignore_id)
        tokens_in = functional.pad(text, (1, 0), value=self.sos)
        targets = functional.pad(text, (0, 1), value=self.ignore_id)
        targets = targets.masked_fill(positions == text_lengths.unsqueeze(1), self.eos)
        logits = self.lm(tokens_in)
        nll = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape)
        lengths = text_lengths + 1
        return nll.masked_fill(positions >= lengths.unsqueeze(1), 0.0), lengths

    def start(self, utterances: int, beams: int, device: torch.device, dtype: torch.dtype) -> BeamState:
        """State of a search before the first token; start with `sos`."""
        return self.lm.start(utterances, beams, device, dtype)

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, BeamState]:
        """Last tokens (utterances, beams) -> log-probabilities of the next (utterances, beams, vocab)."""
        return self.lm.step(tokens, state)
