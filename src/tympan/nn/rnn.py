"""Recurrent layers over padded batches, in any order of lengths.

Shapes: x (batch, time, size), lengths (batch,). Utterances of length 0 are run with one frame, which is zeroed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from tympan.nn.dropout import Dropout
from tympan.nn.full_precision import full_precision
from tympan.nn.masks import length_mask

RnnType = Literal["lstm", "gru"]
_CLASSES: dict[str, Callable[..., nn.RNNBase]] = {"lstm": nn.LSTM, "gru": nn.GRU}


class ProjectedRnn(nn.Module):
    """A projection after every layer, tanh between them, and every `subsample`-th frame kept (pyramidal encoders)."""

    def __init__(
        self,
        kind: RnnType,
        *,
        input_size: int,
        hidden_size: int,
        output_size: int,
        num_layers: int,
        is_bidirectional: bool,
        dropout_rate: float,
        subsample: Sequence[int],
    ) -> None:
        super().__init__()
        assert len(subsample) == num_layers, (subsample, num_layers)
        self.subsample = tuple(subsample)
        self._name = "birnn" if is_bidirectional else "rnn"
        self.dropout = Dropout(dropout_rate)
        for layer in range(num_layers):
            rnn = _CLASSES[kind](
                input_size if layer == 0 else output_size, hidden_size, batch_first=True, bidirectional=is_bidirectional
            )
            setattr(self, f"{self._name}{layer}", rnn)
            setattr(self, f"bt{layer}", nn.Linear(hidden_size * (2 if is_bidirectional else 1), output_size))

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        for layer, step in enumerate(self.subsample):
            x = run_rnn(getattr(self, f"{self._name}{layer}"), x, lengths)[:, ::step]
            lengths = _subsampled(lengths, step)
            x = getattr(self, f"bt{layer}")(x)
            if layer < len(self.subsample) - 1:
                x = torch.tanh(self.dropout(x))
        return x, lengths

    def output_lengths(self, lengths: Tensor) -> Tensor:
        for step in self.subsample:
            lengths = _subsampled(lengths, step)
        return lengths


class PlainRnn(nn.Module):
    """Stacked layers, then one projection and tanh."""

    def __init__(
        self,
        kind: RnnType,
        *,
        input_size: int,
        hidden_size: int,
        output_size: int,
        num_layers: int,
        is_bidirectional: bool,
        dropout_rate: float,
    ) -> None:
        super().__init__()
        # torch's own dropout works between layers; a single layer has none.
        between = dropout_rate if num_layers > 1 else 0.0
        self.nbrnn = _CLASSES[kind](
            input_size, hidden_size, num_layers, batch_first=True, dropout=between, bidirectional=is_bidirectional
        )
        self.l_last = nn.Linear(hidden_size * (2 if is_bidirectional else 1), output_size)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tanh(self.l_last(run_rnn(self.nbrnn, x, lengths))), lengths

    def output_lengths(self, lengths: Tensor) -> Tensor:
        return lengths


def build_rnn(
    kind: RnnType,
    *,
    use_projection: bool,
    input_size: int,
    hidden_size: int,
    output_size: int,
    num_layers: int,
    is_bidirectional: bool,
    dropout_rate: float,
    subsample: Sequence[int],
) -> ProjectedRnn | PlainRnn:
    """ESPnet2's RNN encoders; without projection nothing is subsampled."""
    if use_projection:
        return ProjectedRnn(
            kind,
            input_size=input_size,
            hidden_size=hidden_size,
            output_size=output_size,
            num_layers=num_layers,
            is_bidirectional=is_bidirectional,
            dropout_rate=dropout_rate,
            subsample=subsample,
        )
    return PlainRnn(
        kind,
        input_size=input_size,
        hidden_size=hidden_size,
        output_size=output_size,
        num_layers=num_layers,
        is_bidirectional=is_bidirectional,
        dropout_rate=dropout_rate,
    )


def run_rnn(rnn: nn.RNNBase, x: Tensor, lengths: Tensor) -> Tensor:
    """(batch, time, features), zero beyond the lengths. Packing needs the lengths on the host."""
    packed = pack_padded_sequence(x, lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)
    out, _ = pad_packed_sequence(run_layers(rnn, packed)[0], batch_first=True, total_length=x.size(1))
    return out * length_mask(lengths, x.size(1)).unsqueeze(-1)


def run_layers(rnn: nn.RNNBase, x: Tensor | PackedSequence, carried: Any = None) -> tuple[Any, Any]:
    """`rnn(x, carried)`. On a CPU it leaves float16 autocast: oneDNN has no LSTM with float32 weights there."""
    if not (x.data.is_cpu and torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.float16):
        found: tuple[Any, Any] = rnn(x, carried)
    else:
        with full_precision(x.data):
            found = rnn(x.to(next(rnn.parameters()).dtype), carried)
    return found


def _subsampled(lengths: Tensor, step: int) -> Tensor:
    """ESPnet2's rounding."""
    return torch.div(lengths + 1, step, rounding_mode="floor") if step > 1 else lengths
