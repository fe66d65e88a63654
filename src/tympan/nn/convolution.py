"""The Conformer's convolution module (Gulati et al. 2020, 2.2).

Shapes: x (batch, time, channels); mask as `apart` takes it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tympan.errors import UserError
from tympan.nn.batch_norm import MaskedBatchNorm1d
from tympan.nn.frozen import FrozenLinear
from tympan.nn.full_precision import full_precision
from tympan.nn.masks import apart, together


class ConvolutionModule(nn.Module):
    """Gate, depthwise convolution over time, batch normalization, activation, projection.

    Padding is zeroed before the convolution, so that the last frames are the same as without padding.
    """

    def __init__(self, channels: int, kernel_size: int, activation: nn.Module) -> None:
        super().__init__()
        self.pointwise_conv1: nn.Module = nn.Conv1d(channels, 2 * channels, kernel_size=1)
        self.depthwise_conv = DepthwiseConv1d(channels, kernel_size)
        self.norm = MaskedBatchNorm1d(channels)
        self.pointwise_conv2: nn.Module = nn.Conv1d(channels, channels, kernel_size=1)
        self.activation = activation

    def freeze(self) -> None:
        """The convolutions of kernel size 1 are linear layers."""
        for name in ("pointwise_conv1", "pointwise_conv2"):
            conv = getattr(self, name)
            if isinstance(conv, nn.Conv1d):
                setattr(self, name, FrozenLinear(conv.weight.squeeze(-1), conv.bias))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = F.glu(pointwise(x, self.pointwise_conv1), dim=-1)
        x = together(self.depthwise_conv(apart(x, mask)), mask, x.size(1))
        x = self.activation(self.norm(x, mask))
        return pointwise(x, self.pointwise_conv2)


class DepthwiseConv1d(nn.Conv1d):
    """One filter per channel, over time; the output is as long as the input.

    Computed as a 2D convolution of height 1 in channels-last layout, which x (batch, time, channels) already has. On a
    CPU this is three times as fast as with transposed input (forward and backward of 8 x 124 x 256: 3.0, not 9.5 ms).
    """

    def __init__(self, channels: int, kernel_size: int) -> None:
        if kernel_size % 2 == 0:
            raise UserError(f"the kernel size of a convolution over time must be odd, found {kernel_size}")
        super().__init__(channels, channels, kernel_size, padding=(kernel_size - 1) // 2, groups=channels)

    def forward(self, x: Tensor) -> Tensor:
        if not _is_unsafe(x):
            return self._convolve(x, self.weight, self.bias)
        with full_precision(x):
            bias = None if self.bias is None else self.bias.float()
            return self._convolve(x.float(), self.weight.float(), bias).bfloat16()

    def _convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        image = x.transpose(1, 2).unsqueeze(2)  # (batch, channels, 1, time)
        padding = (0, self.kernel_size[0] // 2)
        # Flattened, so that the gradient has the strides of the weight; otherwise DDP warns.
        weight = weight.flatten(1)[:, None, None]
        out = F.conv2d(image, weight, bias, padding=padding, groups=self.groups)
        return out.squeeze(2).transpose(1, 2)


def _is_unsafe(x: Tensor) -> bool:
    """Whether it would run in bfloat16 on a CPU. On processors with AVX512-BF16, torch 2.13 hangs for some
    shapes, such as 144 channels, a kernel of 15 and 56, 58, 62 or 64 frames."""
    if x.device.type != "cpu":
        return False
    if torch.is_autocast_enabled("cpu"):
        return torch.get_autocast_dtype("cpu") == torch.bfloat16
    return x.dtype == torch.bfloat16


def pointwise(x: Tensor, conv: nn.Module) -> Tensor:
    """Compute a convolution of kernel size 1 as a matrix product, which needs no transposed copies."""
    if isinstance(conv, FrozenLinear):
        out: Tensor = conv(x)
        return out
    assert isinstance(conv, nn.Conv1d)
    return F.linear(x, conv.weight.squeeze(-1), conv.bias)
