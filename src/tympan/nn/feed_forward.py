"""Position-wise layers of a Transformer block: linear, or convolutions over time.

Shapes: x (batch, time, size); mask (batch, time), True for frames that hold data.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from tympan.nn.dropout import Dropout
from tympan.nn.frozen import FUSED_ACTIVATIONS, freeze_linear
from tympan.nn.fused_feed_forward import can_fuse, fused_feed_forward


class PositionwiseFeedForward(nn.Module):
    """Linear, activation, dropout, linear."""

    def __init__(self, size: int, hidden_size: int, dropout_rate: float, activation: nn.Module) -> None:
        super().__init__()
        self.w_1: nn.Module = nn.Linear(size, hidden_size)
        self.w_2: nn.Module = nn.Linear(hidden_size, size)
        self.dropout = Dropout(dropout_rate)
        self.activation = activation

    def freeze(self) -> None:
        """The activation becomes part of the first product."""
        name = FUSED_ACTIVATIONS.get(type(self.activation))
        if name is not None and isinstance(self.w_1, nn.Linear):
            self.w_1, self.activation = freeze_linear(self.w_1, name), nn.Identity()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if self.training and isinstance(self.activation, nn.SiLU) and can_fuse(x):
            assert isinstance(self.w_1, nn.Linear)
            assert isinstance(self.w_2, nn.Linear)
            return fused_feed_forward(x, self.w_1, self.w_2, self.dropout.p)
        out: Tensor = self.w_2(self.dropout(self.activation(self.w_1(x))))
        return out


class MultiLayeredConv1d(nn.Module):
    """Two convolutions over time (FastSpeech). Padding is zeroed before each."""

    def __init__(self, size: int, hidden_size: int, kernel_size: int, dropout_rate: float) -> None:
        super().__init__()
        self.w_1 = nn.Conv1d(size, hidden_size, kernel_size, padding=(kernel_size - 1) // 2)
        self.w_2 = nn.Conv1d(hidden_size, size, kernel_size, padding=(kernel_size - 1) // 2)
        self.dropout = Dropout(dropout_rate)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        hidden = torch.relu(_convolve(self.w_1, x, mask))
        return _convolve(self.w_2, self.dropout(hidden), mask)


class Conv1dLinear(nn.Module):
    """A convolution over time, then a linear layer. Padding is zeroed before the convolution."""

    def __init__(self, size: int, hidden_size: int, kernel_size: int, dropout_rate: float) -> None:
        super().__init__()
        self.w_1 = nn.Conv1d(size, hidden_size, kernel_size, padding=(kernel_size - 1) // 2)
        self.w_2 = nn.Linear(hidden_size, size)
        self.dropout = Dropout(dropout_rate)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        out: Tensor = self.w_2(self.dropout(torch.relu(_convolve(self.w_1, x, mask))))
        return out


def build_positionwise(
    kind: Literal["linear", "conv1d", "conv1d-linear"],
    *,
    size: int,
    hidden_size: int,
    kernel_size: int,
    dropout_rate: float,
    activation: nn.Module,
) -> nn.Module:
    """The layer of ESPnet2's `positionwise_layer_type`; the convolutions always use ReLU."""
    if kind == "linear":
        return PositionwiseFeedForward(size, hidden_size, dropout_rate, activation)
    convolutional = MultiLayeredConv1d if kind == "conv1d" else Conv1dLinear
    return convolutional(size, hidden_size, kernel_size, dropout_rate)


def _convolve(conv: nn.Conv1d, x: Tensor, mask: Tensor) -> Tensor:
    out: Tensor = conv((x * mask.unsqueeze(-1)).transpose(1, 2)).transpose(1, 2)
    return out
