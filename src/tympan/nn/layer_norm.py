"""Layer normalization with ESPnet2's settings."""

from __future__ import annotations

from torch import nn


class LayerNorm(nn.LayerNorm):
    """Over the last axis, with ESPnet2's epsilon."""

    def __init__(self, size: int) -> None:
        super().__init__(size, eps=1e-12)
