"""The convolutional gating MLP of the Branchformers (Sakuma et al. 2022).

Shapes: x (batch, time, size); mask (batch, time).
"""

from __future__ import annotations

from torch import Tensor, nn

from tympan.nn.activation import get_activation
from tympan.nn.convolution import DepthwiseConv1d
from tympan.nn.dropout import Dropout
from tympan.nn.layer_norm import LayerNorm


class ConvolutionalGatingMLP(nn.Module):
    """Projection, GELU, gating by a convolution of half of the channels, projection."""

    def __init__(
        self,
        size: int,
        linear_units: int,
        kernel_size: int,
        dropout_rate: float,
        *,
        use_linear_after_conv: bool,
        gate_activation: str,
    ) -> None:
        super().__init__()
        self.channel_proj1 = nn.Sequential(nn.Linear(size, linear_units), nn.GELU())
        self.csgu = ConvolutionalSpatialGatingUnit(
            linear_units,
            kernel_size,
            dropout_rate,
            use_linear_after_conv=use_linear_after_conv,
            gate_activation=gate_activation,
        )
        self.channel_proj2 = nn.Linear(linear_units // 2, size)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        out: Tensor = self.channel_proj2(self.csgu(self.channel_proj1(x), mask))
        return out


class ConvolutionalSpatialGatingUnit(nn.Module):
    """One half of the channels, multiplied by the other half, which passes a convolution over time."""

    def __init__(
        self, size: int, kernel_size: int, dropout_rate: float, *, use_linear_after_conv: bool, gate_activation: str
    ) -> None:
        super().__init__()
        channels = size // 2
        self.norm = LayerNorm(channels)
        self.conv = DepthwiseConv1d(channels, kernel_size)
        self.linear = nn.Linear(channels, channels) if use_linear_after_conv else None
        self.act = get_activation(gate_activation)
        self.dropout = Dropout(dropout_rate)

    def reset_own_parameters(self) -> None:
        """Initialize the gates near 1, independent of the model's initialization."""
        for layer in (self.conv, self.linear):
            if layer is not None:
                nn.init.normal_(layer.weight, std=1e-6)
                assert layer.bias is not None
                nn.init.ones_(layer.bias)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        value, gate = x.chunk(2, dim=-1)
        gate = self.conv(self.norm(gate) * mask.unsqueeze(-1))
        if self.linear is not None:
            gate = self.linear(gate)
        out: Tensor = self.dropout(value * self.act(gate))
        return out
