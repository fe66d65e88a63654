"""Lightweight and dynamic convolution (Wu et al. 2019), which Transformer blocks may have instead of self-attention.

Both mix frames with kernels that sum to one and are shared by groups of channels. Lightweight convolution learns its
kernels; dynamic convolution predicts one for every frame. The 2D variants add a convolution over the channels of a
frame (Fujita et al. 2020). Names of parameters and order of operations are those of ESPnet.

Shapes: x (batch, time, size); H groups; K taps of the kernel. In steps: U utterances, B beams.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tympan.errors import UserError
from tympan.nn.attention import SelfAttentionContext
from tympan.nn.masks import length_mask


class LightConvolution(nn.Module):
    """Linear layer, GLU, convolution over time (and over channels if `is_2d`), linear layer.

    `is_causal`: a frame sees only itself and earlier frames, so the convolution can be run step by step.
    """

    def __init__(
        self, size: int, *, groups: int, kernel_size: int, dropout_rate: float, is_causal: bool, has_bias: bool,
        is_2d: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        if size % groups:
            raise UserError(f"output_size {size} must be a multiple of conv_wshare, which is {groups}")
        if kernel_size % 2 == 0:
            raise UserError(f"conv_kernel_length must contain only odd numbers, found {kernel_size}")
        self.groups = groups
        self.kernel_size = kernel_size
        self.dropout_rate = dropout_rate
        self.is_causal = is_causal
        self.is_2d = is_2d
        self.linear1 = nn.Linear(size, 2 * size)
        self.linear2 = nn.Linear((1 + is_2d) * size, size)
        self.bias = nn.Parameter(torch.zeros(size)) if has_bias else None

    @property
    def reach(self) -> int:
        """Number of frames that the kernel sees on either side."""
        return self.kernel_size // 2

    def forward(self, x: Tensor, context: SelfAttentionContext | None = None) -> Tensor:
        """Padding (frames beyond `context.lengths`) does not change the frames of an utterance."""
        x = F.glu(self.linear1(x), dim=-1)
        mask = None
        if context is not None:
            assert context.lengths is not None
            mask = length_mask(context.lengths, x.size(1))
            x = x * mask.unsqueeze(2)
        return self._read_out(x, self.over_time(x, mask))

    def step(self, x: Tensor, history: Tensor) -> tuple[Tensor, Tensor]:
        """The newest frame x (U, B, size) of a causal convolution and its next history (U, B, frames, size)."""
        x = F.glu(self.linear1(x), dim=-1)
        window = torch.cat([history, x.unsqueeze(2)], dim=2)
        out = self._read_out(x, self.over_window(x, window))
        return out, window[:, :, -self.reach :] if self.reach else window[:, :, :0]

    def over_time(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Convolution over time; x is zero where mask (batch, time) is false."""
        raise NotImplementedError

    def over_window(self, x: Tensor, window: Tensor) -> Tensor:
        """The same for the newest frame, from the frames (U, B, frames, size) that the kernel sees; fewer at first."""
        raise NotImplementedError

    def channel_kernel(self, x: Tensor) -> Tensor:
        """The kernel over channels, (..., K) or (K,)."""
        raise NotImplementedError

    def _read_out(self, x: Tensor, mixed: Tensor) -> Tensor:
        if self.bias is not None:
            mixed = mixed + self.bias
        if self.is_2d:
            windows = F.pad(x, (self.reach, self.reach)).unfold(-1, self.kernel_size, 1)
            over_channels = (windows @ self.channel_kernel(x).unsqueeze(-1)).squeeze(-1)
            mixed = torch.cat([mixed, over_channels], dim=-1)
        out: Tensor = self.linear2(mixed)
        return out


class LightweightConvolution(LightConvolution):
    """One learned kernel per group; channel c belongs to group c modulo the number of groups."""

    def __init__(
        self, size: int, *, groups: int, kernel_size: int, dropout_rate: float, is_causal: bool, has_bias: bool,
        is_2d: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(
            size, groups=groups, kernel_size=kernel_size, dropout_rate=dropout_rate, is_causal=is_causal,
            has_bias=has_bias, is_2d=is_2d,
        )  # fmt: skip
        self.weight = nn.Parameter(torch.rand(groups, 1, kernel_size))
        self.weight_f = nn.Parameter(torch.rand(1, 1, kernel_size)) if is_2d else None

    def over_time(self, x: Tensor, mask: Tensor | None) -> Tensor:
        kernel = self._kernel(x.size(2)).unsqueeze(1)
        padding = (kernel.size(2) - 1, 0) if self.is_causal else (self.reach, self.reach)
        out = F.conv1d(F.pad(x.transpose(1, 2), padding), kernel, groups=x.size(2))
        return out.transpose(1, 2)

    def over_window(self, x: Tensor, window: Tensor) -> Tensor:
        kernel = self._kernel(x.size(2))[:, -window.size(2) :]
        return torch.einsum("ubtc,ct->ubc", window, kernel)

    def channel_kernel(self, x: Tensor) -> Tensor:
        assert self.weight_f is not None
        return F.dropout(self.weight_f.flatten().softmax(0), self.dropout_rate, self.training)

    def _kernel(self, channels: int) -> Tensor:
        """(channels, taps), only those of the past and the frame itself if causal."""
        weight = F.dropout(self.weight, self.dropout_rate, self.training).squeeze(1)
        if self.is_causal:
            weight = weight[:, : self.reach + 1]
        return weight.softmax(1).repeat(channels // self.groups, 1)


class DynamicConvolution(LightConvolution):
    """A kernel per frame and group, predicted from the frame; a group has neighbouring channels.

    The kernel is normalized over the frames that exist, so it sums to one at the ends of an utterance too.
    """

    def __init__(
        self, size: int, *, groups: int, kernel_size: int, dropout_rate: float, is_causal: bool, has_bias: bool,
        is_2d: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(
            size, groups=groups, kernel_size=kernel_size, dropout_rate=dropout_rate, is_causal=is_causal,
            has_bias=has_bias, is_2d=is_2d,
        )  # fmt: skip
        self.linear_weight = nn.Linear(size, groups * kernel_size)
        self.linear_weight_f = nn.Linear(size, kernel_size) if is_2d else None
        for layer in (self.linear_weight, self.linear_weight_f):
            if layer is not None:
                nn.init.xavier_uniform_(layer.weight)

    def over_time(self, x: Tensor, mask: Tensor | None) -> Tensor:
        batch, frames, size = x.shape
        never = torch.finfo(x.dtype).min
        taps = self._taps(x).transpose(1, 2)  # (batch, H, time, K)
        band = _shift_rows(taps, never).narrow(3, self.reach, frames)  # (batch, H, time, time)
        if self.is_causal:
            future = torch.ones(frames, frames, dtype=torch.bool, device=x.device).triu(1)
            band = band.masked_fill(future, never)
        if mask is not None:
            band = band.masked_fill(~mask[:, None, None], never)
        values = x.view(batch, frames, self.groups, -1).transpose(1, 2)
        return (band.softmax(3) @ values).transpose(1, 2).reshape(batch, frames, size)

    def over_window(self, x: Tensor, window: Tensor) -> Tensor:
        taps = self._taps(x)[..., : self.reach + 1][..., -window.size(2) :]  # (U, B, H, frames)
        values = window.view(*window.shape[:3], self.groups, -1)
        return torch.einsum("ubtgc,ubgt->ubgc", values, taps.softmax(3)).flatten(2)

    def channel_kernel(self, x: Tensor) -> Tensor:
        assert self.linear_weight_f is not None
        kernel: Tensor = self.linear_weight_f(x)
        return kernel

    def _taps(self, x: Tensor) -> Tensor:
        """(..., H, K) before normalization."""
        taps = F.dropout(self.linear_weight(x), self.dropout_rate, self.training)
        return taps.view(*taps.shape[:-1], self.groups, self.kernel_size)


def _shift_rows(taps: Tensor, fill: float) -> Tensor:
    """(..., T, K) -> (..., T, T + K - 1): row t moved t columns to the right, `fill` elsewhere."""
    frames, count = taps.shape[-2:]
    rows = F.pad(taps, (0, frames), value=fill).flatten(-2)
    return rows[..., : rows.size(-1) - frames].reshape(*taps.shape[:-2], frames, frames + count - 1)
