"""Recurrent language model (LSTM, GRU or a plain RNN)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from tympan.config.range import Range
from tympan.errors import UserError
from tympan.nn.beam_state import BeamState
from tympan.nn.dropout import Dropout
from tympan.nn.rnn import run_layers

# Shapes: U utterances, B beams, N = U * B, L layers, H hidden units, V vocabulary.

_Carried = Tensor | tuple[Tensor, Tensor]


@dataclass(frozen=True)
class RnnLmState(BeamState):
    hidden: Tensor  # (U, B, L, H)
    cell: Tensor | None  # (U, B, L, H), of an LSTM


class SequentialRnnLm(nn.Module):
    """Embedding, recurrent layers, projection onto the vocabulary."""

    def __init__(
        self,
        vocab_size: int,
        *,
        unit: Annotated[int, Range(1, 1_000_000)] = 650,
        nhid: Annotated[int | None, Range(1, 1_000_000)] = None,
        nlayers: Annotated[int, Range(1, 1_000)] = 2,
        dropout_rate: Annotated[float, Range(0, below=1)] = 0.0,
        tie_weights: bool = False,
        rnn_type: str = "lstm",
        ignore_id: Annotated[int, Range(-1_000_000, 1_000_000)] = 0,
    ) -> None:
        super().__init__()
        hidden_size = unit if nhid is None else nhid
        if tie_weights and hidden_size != unit:
            raise UserError(
                f"lm_conf: tie_weights needs nhid to equal unit, but nhid is {hidden_size} and unit is {unit}"
            )
        self.drop = Dropout(dropout_rate)
        self.encoder = nn.Embedding(vocab_size, unit, padding_idx=ignore_id)
        # torch warns about dropout with a single layer.
        between = dropout_rate if nlayers > 1 else 0.0
        self.rnn = _rnn(rnn_type, unit, hidden_size, nlayers, between)
        self.decoder = nn.Linear(hidden_size, vocab_size)
        if tie_weights:
            self.decoder.weight = self.encoder.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (batch, length), sos first -> logits (batch, length, V)."""
        return self._run(tokens, None)[0]

    def start(self, utterances: int, beams: int, device: torch.device, dtype: torch.dtype) -> RnnLmState:
        shape = (utterances, beams, self.rnn.num_layers, self.rnn.hidden_size)
        hidden = torch.zeros(shape, device=device, dtype=dtype)
        return RnnLmState(hidden=hidden, cell=hidden if isinstance(self.rnn, nn.LSTM) else None)

    def step(self, tokens: Tensor, state: RnnLmState) -> tuple[Tensor, RnnLmState]:
        """Last tokens (U, B) -> log-probabilities of the next (U, B, V)."""
        utterances, beams = tokens.shape
        hidden = _layers_first(state.hidden)
        carried: _Carried = hidden if state.cell is None else (hidden, _layers_first(state.cell))
        logits, carried = self._run(tokens.reshape(-1, 1), carried)
        hidden, cell = (carried, None) if isinstance(carried, Tensor) else carried
        new_state = RnnLmState(
            hidden=_beams_first(hidden, utterances, beams),
            cell=None if cell is None else _beams_first(cell, utterances, beams),
        )
        return logits.log_softmax(dim=-1).view(utterances, beams, -1), new_state

    def _run(self, tokens: Tensor, carried: _Carried | None) -> tuple[Tensor, _Carried]:
        output, carried = run_layers(self.rnn, self.drop(self.encoder(tokens)), carried)
        return self.decoder(self.drop(output)), carried


def _rnn(name: str, unit: int, hidden_size: int, layers: int, dropout: float) -> nn.RNNBase:
    kind = name.lower()
    if kind == "lstm":
        return nn.LSTM(unit, hidden_size, layers, dropout=dropout, batch_first=True)
    if kind == "gru":
        return nn.GRU(unit, hidden_size, layers, dropout=dropout, batch_first=True)
    nonlinearity = {"rnn_tanh": "tanh", "rnn_relu": "relu"}.get(kind)
    if nonlinearity is None:
        raise UserError(f"lm_conf: rnn_type must be lstm, gru, rnn_tanh or rnn_relu, not '{name}'")
    return nn.RNN(unit, hidden_size, layers, nonlinearity=nonlinearity, dropout=dropout, batch_first=True)


def _layers_first(tensor: Tensor) -> Tensor:
    """(U, B, L, H) -> (L, N, H), as torch's recurrent layers expect it."""
    return tensor.flatten(0, 1).transpose(0, 1).contiguous()


def _beams_first(tensor: Tensor, utterances: int, beams: int) -> Tensor:
    """(L, N, H) -> (U, B, L, H)."""
    return tensor.transpose(0, 1).reshape(utterances, beams, *tensor.shape[::2])
