"""Self-attention within a window around each frame (Beltagy et al. 2020), with the parameter names of Longformer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tympan.nn.attention import SelfAttentionContext

LEAST_BLOCK = 32
"""Fewest frames that are computed together."""


class LongformerAttention(nn.Module):
    """A frame attends to `window` frames on either side, `dilation` frames apart.

    Time and memory grow with the length of an utterance, not with its square.
    """

    def __init__(self, heads: int, size: int, dropout_rate: float, *, window: int, dilation: int = 1) -> None:
        super().__init__()
        self.heads, self.window, self.dilation, self.rate = heads, window, dilation, dropout_rate
        self.attention_layer = _Projections(size)

    def forward(self, x: Tensor, context: SelfAttentionContext) -> Tensor:
        """x (batch, time, size)."""
        batch, time, size = x.shape
        reach = self.window * self.dilation
        block = max(2 * reach, LEAST_BLOCK)
        extra = -time % block

        def split(projected: Tensor) -> Tensor:
            heads = projected.view(batch, time, self.heads, -1).transpose(1, 2)
            return nn.functional.pad(heads, (0, 0, 0, extra))

        layer = self.attention_layer
        query = split(layer.query(x)).reshape(batch, self.heads, -1, block, size // self.heads)

        def around(projected: Tensor) -> Tensor:
            """(batch, heads, blocks, block + 2 * reach, head size): the frames that a block can see."""
            padded = nn.functional.pad(split(projected), (0, 0, reach, reach))
            windows: Tensor = padded.unfold(2, block + 2 * reach, block)
            return windows.transpose(-1, -2)

        bias = nn.functional.pad(context.bias.expand(batch, 1, 1, time)[:, 0, 0], (reach, reach + extra), value=_low(x))
        keys: Tensor = bias.unfold(1, block + 2 * reach, block)[:, None, :, None]
        rate = self.rate if self.training else 0.0
        key, value, mask = around(layer.key(x)), around(layer.value(x)), self._band(x, block) + keys
        out = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=rate)
        return out.flatten(2, 3)[:, :, :time].transpose(1, 2).reshape(batch, time, size)

    def _band(self, x: Tensor, block: int) -> Tensor:
        """(block, block + 2 * reach): 0 for the frames of the window, very negative for others."""
        reach = self.window * self.dilation
        query = torch.arange(block, device=x.device).unsqueeze(1)
        distance = torch.arange(block + 2 * reach, device=x.device) - reach - query
        is_seen = (distance.abs() <= reach) & (distance % self.dilation == 0)
        return torch.zeros(is_seen.shape, dtype=x.dtype, device=x.device).masked_fill(~is_seen, _low(x))


class _Projections(nn.Module):
    """Those of frames that see everything (`_global`) are not used, but are part of ESPnet2's checkpoints."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(size, size), nn.Linear(size, size), nn.Linear(size, size)
        self.query_global, self.key_global = nn.Linear(size, size), nn.Linear(size, size)
        self.value_global = nn.Linear(size, size)
        for layer in (self.query_global, self.key_global, self.value_global):
            layer.requires_grad_(False)


def _low(x: Tensor) -> float:
    """Half of the lowest number, so that a sum of two stays finite."""
    return torch.finfo(x.dtype).min / 2
