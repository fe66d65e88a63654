"""Position-wise layers of a Transformer block: linear, or convolutions over time.

Shapes: x (batch, time, size); mask as `apart` takes it, True for valid frames.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from tympan.nn.dropout import Dropout
from tympan.nn.frozen import freeze_linear
from tympan.nn.fused_feed_forward import can_fuse, fused_feed_forward
from tympan.nn.masks import apart, together

HIDDEN_NUMBERS = 1 << 20
"""Size of the part of the hidden layer computed at a time: 4 MB, or 512 rows of the usual 2,048 units."""


class PositionwiseFeedForward(nn.Module):
    """Linear, activation, dropout, linear."""

    def __init__(self, size: int, hidden_size: int, dropout_rate: float, activation: nn.Module) -> None:
        super().__init__()
        self.w_1: nn.Module = nn.Linear(size, hidden_size)
        self.w_2: nn.Module = nn.Linear(hidden_size, size)
        self.dropout = Dropout(dropout_rate)
        self.activation = activation
        self.hidden_size = hidden_size
        self.rows_at_once: int | None = None

    def freeze(self) -> None:
        """Compute the hidden layer, eight times as wide as the model, in parts that fit into the cache."""
        if isinstance(self.w_1, nn.Linear) and isinstance(self.activation, nn.ReLU):
            self.w_1, self.activation = freeze_linear(self.w_1, "relu"), nn.Identity()
        elif isinstance(self.activation, nn.SiLU):
            self.activation = nn.SiLU(inplace=True)  # oneDNN's fused SiLU is slower than a separate one
        self.rows_at_once = HIDDEN_NUMBERS // self.hidden_size

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if self.rows_at_once is None or x[..., 0].numel() <= self.rows_at_once:
            return self._forward(x)
        parts = torch.split(x.reshape(-1, x.size(-1)), self.rows_at_once)
        return torch.cat([self._forward(part) for part in parts]).view(x.shape)

    def _forward(self, x: Tensor) -> Tensor:
        first, second = self.w_1, self.w_2
        # A linear layer with an adapter does more than a product with its weight.
        are_plain = type(first) is nn.Linear and type(second) is nn.Linear
        if self.training and are_plain and isinstance(self.activation, nn.SiLU) and can_fuse(x):
            assert isinstance(first, nn.Linear)
            assert isinstance(second, nn.Linear)
            return fused_feed_forward(x, first, second, self.dropout.p)
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
    out: Tensor = conv(apart(x, mask).transpose(1, 2)).transpose(1, 2)
    return together(out, mask, x.size(1))
