"""Layers between features and encoder."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor, nn

from tympan.config.range import Range
from tympan.nn.dropout import Dropout


class LinearProjection(nn.Module):
    """`preencoder: linear`: a projection of every frame.

    ESPnet2 expects `input_size` in the configuration. Here the builder passes it, so it may be left out.
    """

    def __init__(
        self,
        *,
        input_size: Annotated[int | None, Range(1, 1_000_000)] = None,
        output_size: Annotated[int, Range(1, 1_000_000)],
        dropout: Annotated[float, Range(0, below=1)] = 0.0,
    ) -> None:
        super().__init__()
        assert input_size is not None, "the builder passes it"
        self.output_size = output_size
        self.linear_out = nn.Linear(input_size, output_size)
        self.dropout = Dropout(dropout)

    def forward(self, features: Tensor) -> Tensor:
        """(batch, time, input size) -> (batch, time, output size)."""
        out: Tensor = self.linear_out(self.dropout(features))
        return out
