"""Layers between features and encoder."""

from __future__ import annotations

from torch import Tensor, nn

from tympan.nn.dropout import Dropout


class LinearProjection(nn.Module):
    """`preencoder: linear`: a projection of every frame."""

    def __init__(self, *, input_size: int, output_size: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.output_size = output_size
        self.linear_out = nn.Linear(input_size, output_size)
        self.dropout = Dropout(dropout)

    def forward(self, features: Tensor) -> Tensor:
        """(batch, time, input size) -> (batch, time, output size)."""
        out: Tensor = self.linear_out(self.dropout(features))
        return out
