"""Positional encodings: sinusoids, added to the input or passed to relative attention.

Shapes: x (batch, time, size).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tympan.errors import UserError
from tympan.nn.dropout import Dropout
from tympan.nn.typed_torch import before_loading


@dataclass(frozen=True)
class Positioned:
    """The input of the first layer, and the positions for the relative attention of every layer."""

    x: Tensor
    table: Tensor | None = None
    """(positions, size): sinusoids of relative positions."""
    max_len: int = 0
    """The start of the legacy table, which counts down, unless the input is longer."""


class NoPosition(nn.Module):
    """The input layer adds no positions: the encoder does."""

    def forward(self, x: Tensor) -> Positioned:
        return Positioned(x)


def sinusoids(positions: Tensor, size: int) -> Tensor:
    """(positions, size): sine in the even, cosine in the odd columns (Vaswani et al. 2017, 3.5)."""
    rates = torch.exp(torch.arange(0, size, 2, dtype=torch.float32) * -(math.log(10000.0) / size))
    angles = positions.to(torch.float32).unsqueeze(1) * rates.to(positions.device)
    table = torch.empty(positions.numel(), size, device=positions.device)
    table[:, 0::2] = angles.sin()
    table[:, 1::2] = angles.cos()[:, : size // 2]
    return table


def _drop_stored_table(module: nn.Module, state: dict[str, Tensor], prefix: str, *rest: object) -> None:
    """ESPnet before version 0.6 stored its table."""
    state.pop(f"{prefix}pe", None)


class _Table(nn.Module):
    """A table of sinusoids, computed once and again for a longer input. Never part of the state dict."""

    def __init__(self, size: int, dropout_rate: float, max_len: int) -> None:
        super().__init__()
        self.size = size
        self.max_len = max_len
        self.scale = math.sqrt(size)
        self.dropout = Dropout(dropout_rate)
        self.register_buffer("table", sinusoids(self._positions(max_len), size), persistent=False)
        before_loading(self, _drop_stored_table)

    table: Tensor

    def _positions(self, length: int) -> Tensor:
        raise NotImplementedError

    def _rows(self, length: int) -> int:
        return length

    def _get_table(self, length: int, like: Tensor) -> Tensor:
        if self.table.size(0) < self._rows(length):
            positions = self._positions(length).to(like.device)
            self.table = sinusoids(positions, self.size)
        return self.table


class PositionalEncoding(_Table):
    """x * sqrt(size) + sinusoids."""

    def __init__(self, size: int, dropout_rate: float, max_len: int = 5000) -> None:
        super().__init__(size, dropout_rate, max_len)

    def _positions(self, length: int) -> Tensor:
        return torch.arange(length)

    def forward(self, x: Tensor, first: int = 0) -> Positioned:
        """`first`: the position of x[:, 0]."""
        table = self._get_table(first + x.size(1), x)[first : first + x.size(1)]
        return Positioned(self.dropout(torch.add(table.to(x.dtype), x, alpha=self.scale)))


class ScaledPositionalEncoding(PositionalEncoding):
    """x + alpha * sinusoids, alpha learned (Li et al. 2018, 3.2)."""

    def __init__(self, size: int, dropout_rate: float, max_len: int = 5000) -> None:
        super().__init__(size, dropout_rate, max_len)
        self.alpha = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor, first: int = 0) -> Positioned:
        table = self._get_table(first + x.size(1), x)[first : first + x.size(1)]
        return Positioned(self.dropout(x + self.alpha * table.to(x.dtype)))


class RelPositionalEncoding(_Table):
    """x * sqrt(size), and sinusoids of the positions time - 1 (the first key, seen from the last query) to 1 - time."""

    def __init__(self, size: int, dropout_rate: float, max_len: int = 5000) -> None:
        super().__init__(size, dropout_rate, max_len)

    def _positions(self, length: int) -> Tensor:
        return torch.arange(length - 1, -length, -1)

    def _rows(self, length: int) -> int:
        return 2 * length - 1

    def forward(self, x: Tensor) -> Positioned:
        table = self._get_table(x.size(1), x)
        middle = table.size(0) // 2
        table = table[middle - x.size(1) + 1 : middle + x.size(1)].to(x.dtype)
        return Positioned(self.dropout(x * self.scale), self.dropout(table))


class LegacyRelPositionalEncoding(_Table):
    """x * sqrt(size), and sinusoids counted down from `max_len` - 1 (ESPnet's first relative encoding).

    From time - 1 for longer inputs. ESPnet2 instead counts down from the longest input it has seen so far.
    """

    def __init__(self, size: int, dropout_rate: float, max_len: int = 5000) -> None:
        super().__init__(size, dropout_rate, max_len)

    def _positions(self, length: int) -> Tensor:
        return torch.arange(length - 1, -1, -1)

    def forward(self, x: Tensor) -> Positioned:
        table = self._get_table(x.size(1), x)
        longer_by = table.size(0) - max(self.max_len, x.size(1))
        table = table[longer_by : longer_by + x.size(1)].to(x.dtype)
        return Positioned(self.dropout(x * self.scale), self.dropout(table), self.max_len)


class ConvolutionalPosition(nn.Module):
    """GELU of a grouped convolution over time, in place of x itself (ESPnet2's `pos_enc_layer_type: conv`).

    x must be zero beyond its lengths, because the convolution sees `kernel` / 2 frames on either side.
    """

    def __init__(self, size: int, kernel: int = 128, groups: int = 16) -> None:
        super().__init__()
        if size % groups:
            raise UserError(f"pos_enc_layer_type: conv needs an output_size that is a multiple of {groups}, not {size}")
        conv = nn.Conv1d(size, size, kernel, padding=kernel // 2, groups=groups)
        nn.init.normal_(conv.weight, std=math.sqrt(4.0 / (kernel * size)))
        assert conv.bias is not None
        nn.init.zeros_(conv.bias)
        self.convs = nn.ModuleList([nn.utils.parametrizations.weight_norm(conv, dim=2)])

    def forward(self, x: Tensor) -> Positioned:
        found: Tensor = self.convs[0](x.transpose(1, 2))[..., : x.size(1)]
        return Positioned(nn.functional.gelu(found).transpose(1, 2))


POSITION_CLASSES = {
    "abs_pos": PositionalEncoding,
    "scaled_abs_pos": ScaledPositionalEncoding,
    "rel_pos": RelPositionalEncoding,
    "legacy_rel_pos": LegacyRelPositionalEncoding,
}
