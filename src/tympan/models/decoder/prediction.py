"""Prediction networks of transducers: from the tokens so far to a vector, for whole texts and step by step.

Shapes: tokens (batch, length); in a search any leading shape, one token for each hypothesis.
"""

from __future__ import annotations

from typing import Annotated, Literal, Protocol

import torch
from torch import Tensor, nn

from tympan.config.range import Range
from tympan.nn.dropout import Dropout
from tympan.nn.rnn import run_layers
from tympan.nn.typed_torch import ModuleList

RNNS: dict[str, type[nn.LSTM] | type[nn.GRU]] = {"lstm": nn.LSTM, "gru": nn.GRU}


class PredictionNetwork(Protocol):
    """`--decoder transducer` or `stateless`. `__init__` takes `vocab_size`, which the builder knows."""

    output_size: int

    def __call__(self, tokens: Tensor, /) -> Tensor:
        """Outputs (batch, length, size) after each of `tokens` (batch, length), which begin with blank."""
        ...

    def start(self, like: Tensor, /) -> Tensor:
        """The state (hypotheses, ...) before the first token, for as many hypotheses as `like` has rows."""
        ...

    def step(self, tokens: Tensor, state: Tensor, /) -> tuple[Tensor, Tensor]:
        """Last tokens (hypotheses,), blank at first -> outputs (hypotheses, size), states after them."""
        ...


class RnnPrediction(nn.Module):
    """`decoder: transducer`. LSTM or GRU layers over token embeddings."""

    def __init__(
        self,
        *,
        vocab_size: int,
        rnn_type: Literal["lstm", "gru"] = "lstm",
        num_layers: Annotated[int, Range(1, 1_000)] = 1,
        hidden_size: Annotated[int, Range(1, 1_000_000)] = 320,
        dropout: Annotated[float, Range(0, below=1)] = 0.0,
        dropout_embed: Annotated[float, Range(0, below=1)] = 0.0,
        embed_pad: Annotated[int, Range(0, 1_000_000)] = 0,
    ) -> None:
        super().__init__()
        self.output_size = hidden_size
        self.is_lstm = rnn_type == "lstm"
        self.embed = nn.Embedding(vocab_size, hidden_size, padding_idx=embed_pad)
        self.dropout_embed = Dropout(dropout_embed)
        layers = [RNNS[rnn_type](hidden_size, hidden_size, 1, batch_first=True) for _ in range(num_layers)]
        self.decoder: ModuleList[nn.RNNBase] = ModuleList(layers)
        self.dropout_dec: ModuleList[Dropout] = ModuleList([Dropout(dropout) for _ in range(num_layers)])

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.dropout_embed(self.embed(tokens))
        for rnn, dropout in zip(self.decoder, self.dropout_dec, strict=True):
            out = dropout(run_layers(rnn, out)[0])
        return out

    def start(self, like: Tensor) -> Tensor:
        """(hypotheses, layers, hidden and cell, size): zeros."""
        return like.new_zeros(like.size(0), len(self.decoder), 2 if self.is_lstm else 1, self.output_size)

    def step(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        out = self.embed(tokens).unsqueeze(1)
        states = []
        for layer, rnn in enumerate(self.decoder):
            parts = [part.unsqueeze(0).contiguous() for part in state[:, layer].unbind(1)]
            out, after = rnn(out, tuple(parts) if self.is_lstm else parts[0])
            states.append(torch.stack([part[0] for part in (after if self.is_lstm else (after,))], 1))
        return out.squeeze(1), torch.stack(states, 1)


class StatelessPrediction(nn.Module):
    """`decoder: stateless`. Only the last token counts (Ghodsi et al. 2020)."""

    def __init__(
        self,
        *,
        vocab_size: int,
        embed_size: Annotated[int, Range(1, 1_000_000)] = 256,
        embed_dropout_rate: Annotated[float, Range(0, below=1)] = 0.0,
        embed_pad: Annotated[int, Range(0, 1_000_000)] = 0,
    ) -> None:
        super().__init__()
        self.output_size = embed_size
        self.embed = nn.Embedding(vocab_size, embed_size, padding_idx=embed_pad)
        self.embed_dropout_rate = Dropout(embed_dropout_rate)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.embed_dropout_rate(self.embed(tokens))
        return out

    def start(self, like: Tensor) -> Tensor:
        return like.new_zeros(like.size(0), 0)

    def step(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return self.embed(tokens), state
