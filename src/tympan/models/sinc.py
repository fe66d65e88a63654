"""`preencoder: sinc`: band-pass filters that are learned (Kürzinger et al. 2020), with ESPnet2's parameter names.

Shapes: features (batch, frames, window); inside, (batch * frames, channels, positions).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tympan.config.range import Range
from tympan.errors import UserError
from tympan.nn.batch_norm import MaskedBatchNorm1d
from tympan.nn.dropout import Dropout

WINDOW = 400
"""Number of samples per window, which the convolutions reduce to one position."""
FILTERS = 128
FILTER_SIZE = 101


class LightweightSincConvs(nn.Module):
    """Sinc filters and depthwise convolutions on every window of `frontend: sliding_window`.

    Frames of zeros (padding) are excluded from the statistics of batch normalization; ESPnet2 includes them.
    """

    def __init__(
        self,
        *,
        input_size: Annotated[int | None, Range(1, 1_000_000)] = None,
        fs: Annotated[int | float | str, Range(100, 1_000_000)] = 16000,
        in_channels: Annotated[int, Range(1, 1_000)] = 1,
        out_channels: Annotated[int, Range(1, 1_000_000)] = 256,
        activation_type: Literal["leakyrelu", "relu"] = "leakyrelu",
        dropout_type: Literal["dropout", "spatial", "dropout2d"] = "dropout",
        windowing_type: Literal["hamming", "none"] = "hamming",
        scale_type: Literal["mel", "bark"] = "mel",
    ) -> None:
        super().__init__()
        if in_channels != 1:
            raise UserError(f"preencoder_conf in_channels: only one channel is supported, found {in_channels}")
        if input_size != WINDOW:
            raise UserError(
                f"preencoder sinc needs windows of {WINDOW} samples, found {input_size}; use --frontend sliding_window "
                f"with --frontend_conf win_length={WINDOW}"
            )
        if out_channels % FILTERS:
            raise UserError(f"preencoder_conf out_channels must be a multiple of {FILTERS}, found {out_channels}")
        self.output_size = out_channels
        self.filters = SincConv(_rate(fs), window=windowing_type, scale=scale_type)

        def block(channels: int, kernel: int) -> ConvBlock:
            return ConvBlock(channels, out_channels, kernel, activation=activation_type, dropout=dropout_type)

        first = ConvBlock(
            FILTERS, FILTERS, 25, activation=activation_type, dropout=dropout_type, stride=2, pool=2, rate=0.1
        )
        self.blocks = nn.ModuleDict(
            OrderedDict(
                SincConvBlock=SincBlock(self.filters),
                DConvBlock1=first,
                DConvBlock2=block(FILTERS, 9),
                DConvBlock3=block(out_channels, 9),
                DConvBlock4=block(out_channels, 9),
                DConvBlock5=block(out_channels, 7),
            )
        )

    def reset_own_parameters(self) -> None:
        """Initialize the filters as a filterbank, independent of the model's initialization."""
        self.filters.reset_own_parameters()

    def forward(self, features: Tensor) -> Tensor:
        """(batch, frames, window) -> (batch, frames, output size)."""
        batch, frames, _ = features.shape
        x = features.reshape(batch * frames, 1, -1)
        holds_data = x.detach().ne(0).any(-1)  # (batch * frames, 1)
        for block in self.blocks.values():
            x = block(x, holds_data)
        return x.reshape(batch, frames, self.output_size)


class SincBlock(nn.ModuleDict):
    """The filters, a logarithm, normalization, and the mean of pairs."""

    def __init__(self, filters: SincConv) -> None:
        super().__init__(OrderedDict(Filters=filters, BatchNorm=MaskedBatchNorm1d(FILTERS)))

    def forward(self, x: Tensor, holds_data: Tensor) -> Tensor:
        x = torch.log(self["Filters"](x).abs() + 1)
        return F.avg_pool1d(_normalized(self["BatchNorm"], x, holds_data), 2)


class ConvBlock(nn.ModuleDict):
    """A depthwise convolution, activation, normalization, (pooling,) dropout."""

    def __init__(
        self,
        channels: int,
        out_channels: int,
        kernel: int,
        *,
        activation: str,
        dropout: str,
        stride: int = 1,
        pool: int = 1,
        rate: float = 0.15,
    ) -> None:
        depthwise = nn.Conv1d(channels, out_channels, kernel, stride, groups=channels)
        super().__init__(OrderedDict(depthwise=depthwise, batchnorm=MaskedBatchNorm1d(out_channels)))
        self.slope = 0.01 if activation == "leakyrelu" else 0.0
        self.pool = pool
        self.kind = dropout
        self.rate = rate
        self.dropout = Dropout(rate)

    def forward(self, x: Tensor, holds_data: Tensor) -> Tensor:
        x = F.leaky_relu(self["depthwise"](x), self.slope)
        x = _normalized(self["batchnorm"], x, holds_data)
        x = x if self.pool == 1 else F.avg_pool1d(x, self.pool)
        if self.kind == "dropout":
            return self.dropout(x)  # type: ignore[no-any-return]
        # Whole positions (spatial), or whole channels.
        swapped = x.transpose(1, 2) if self.kind == "spatial" else x
        swapped = F.dropout1d(swapped, self.rate, self.training)
        return swapped.transpose(1, 2) if self.kind == "spatial" else swapped


class SincConv(nn.Module):
    """Band-pass filters: the difference of two sinc functions (Ravanelli and Bengio 2018). `f` holds their edges."""

    def __init__(self, rate: float, *, window: str, scale: str) -> None:
        super().__init__()
        self.rate = rate
        self.bank = mel_bank if scale == "mel" else bark_bank
        self.f = nn.Parameter(torch.empty(FILTERS, 2))
        half = FILTER_SIZE // 2
        steps = torch.linspace(1, half, half)
        taper = 0.54 - 0.46 * torch.cos(2.0 * math.pi * steps.flip(0) / FILTER_SIZE)
        self.register_buffer("angles", 2 * math.pi * steps, persistent=False)
        self.register_buffer("taper", torch.ones(half) if window == "none" else taper, persistent=False)
        self.reset_own_parameters()

    angles: Tensor
    taper: Tensor

    def reset_own_parameters(self) -> None:
        with torch.no_grad():
            self.f.copy_(self.bank(FILTERS, self.rate) / self.rate)

    def forward(self, x: Tensor) -> Tensor:
        """(frames, 1, samples) -> (frames, filters, positions)."""
        low = self.f[:, :1].abs()
        high = low + (self.f[:, 1:] - self.f[:, :1]).abs()
        side = (torch.sin(high * self.angles) - torch.sin(low * self.angles)) / (0.5 * self.angles) * self.taper
        kernel = torch.cat([side.flip(1), 2 * (high - low), side], dim=1)
        return F.conv1d(x, kernel.unsqueeze(1).to(x.dtype))


def mel_bank(filters: int, rate: float) -> Tensor:
    """(filters, 2): lower and upper edges in hertz, evenly spaced in mel from 30 Hz to half the rate."""
    low, high = (1125.0 * torch.log(torch.tensor(edge) / 700.0 + 1.0) for edge in (30.0, rate * 0.5))
    edges = 700.0 * (torch.exp(torch.linspace(float(low), float(high), filters + 2) / 1125.0) - 1.0)
    return torch.stack([edges[:-2], edges[2:]], dim=1)


def bark_bank(filters: int, rate: float) -> Tensor:
    """(filters, 2): bands of a critical bandwidth (Zwicker and Terhardt 1980), from 70 Hz to 0.45 of the rate."""

    def bandwidth(hertz: Tensor) -> Tensor:
        return ((hertz / 1000.0) ** 2 * 1.4 + 1.0) ** 0.69 * 75.0 + 25.0

    low, high = (float(bandwidth(torch.tensor(edge))) for edge in (70.0, rate * 0.45))
    spaced = torch.linspace(low, high, filters)
    centers = ((((spaced - 25.0) / 75.0) ** (1.0 / 0.69) - 1.0) / 1.4) ** 0.5 * 1000.0
    half = bandwidth(centers) / 2
    return torch.stack([centers - half, centers + half], dim=1)


def _normalized(norm: nn.Module, x: Tensor, holds_data: Tensor) -> Tensor:
    """x (frames, channels, positions), holds_data (frames, 1)."""
    out: Tensor = norm(x.transpose(1, 2), holds_data.expand(-1, x.size(2)))
    return out.transpose(1, 2)


def _rate(fs: float | str) -> float:
    """16000, "16000" or "16k"."""
    text = str(fs).strip().lower().removesuffix("hz")
    try:
        return float(text[:-1]) * 1000 if text.endswith("k") else float(text)
    except ValueError:
        raise UserError(f"preencoder_conf fs: '{fs}' is not a sample rate such as 16000 or 16k") from None
