"""The layers of Whisper (Radford et al. 2022), with the parameter names of the package openai-whisper.

Shapes: x (batch, time, size); q, k, v (batch, heads, time, head size). In steps: U utterances, B beams.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from tympan.nn.prefix_cache import PrefixCache


class WhisperAttention(nn.Module):
    """Scaled dot-product attention. The keys have no bias."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(size, size)
        self.key = nn.Linear(size, size, bias=False)
        self.value = nn.Linear(size, size)
        self.out = nn.Linear(size, size)
        self.keep_weights = False
        self.weights: Tensor | None = None

    def attend_to(self, x: Tensor, memory: Tensor, bias: Tensor) -> Tensor:
        """Queries from `x`, keys and values from `memory`; `bias` is broadcast to (batch, heads, queries, keys)."""
        k, v = self.project_memory(memory)
        return self.attend(self.project_query(x), k, v, bias)

    def project_query(self, x: Tensor) -> Tensor:
        return self.split_heads(self.query(x))

    def project_memory(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        return self.split_heads(self.key(memory)), self.split_heads(self.value(memory))

    def project_step(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """For the newest tokens: their queries split into heads, and their keys and values for the cache."""
        return self.project_query(x), self.key(x), self.value(x)

    def split_heads(self, x: Tensor) -> Tensor:
        return torch.unflatten(x, -1, (self.heads, -1)).transpose(1, 2)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        """(batch, queries, size) from projected queries, keys and values."""
        if self.keep_weights:
            scores = torch.matmul(q * (1.0 / math.sqrt(q.size(-1))), k.transpose(-2, -1))
            weights = (scores if bias is None else scores + bias).softmax(-1)
            self.weights = weights.detach()
            mixed = torch.matmul(weights, v)
        else:
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class WhisperBlock(nn.Module):
    """Self-attention, attention to the encoder's output (in the decoder), and a feed-forward layer."""

    def __init__(self, size: int, heads: int, *, has_memory: bool) -> None:
        super().__init__()
        self.attn = WhisperAttention(size, heads)
        self.attn_ln = nn.LayerNorm(size)
        self.cross_attn = WhisperAttention(size, heads) if has_memory else None
        self.cross_attn_ln = nn.LayerNorm(size) if has_memory else None
        self.mlp = nn.Sequential(nn.Linear(size, 4 * size), nn.GELU(), nn.Linear(4 * size, size))
        self.mlp_ln = nn.LayerNorm(size)

    def forward(
        self, x: Tensor, bias: Tensor, memory: Tensor | None = None, memory_bias: Tensor | None = None
    ) -> Tensor:
        """x (batch, time, size); `bias` (batch, 1, 1 or time, time)."""
        query = self.attn_ln(x)
        x = x + self.attn.attend_to(query, query, bias)
        if self.cross_attn is not None and self.cross_attn_ln is not None:
            assert memory is not None
            assert memory_bias is not None
            x = x + self.cross_attn.attend_to(self.cross_attn_ln(x), memory, memory_bias)
        out: Tensor = x + self.mlp(self.mlp_ln(x))
        return out

    def project_memory(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the encoder's output."""
        assert self.cross_attn is not None
        return self.cross_attn.project_memory(memory)

    def step(
        self,
        x: Tensor,
        layer: int,
        cache: PrefixCache,
        bias: Tensor,
        memory: tuple[Tensor, Tensor],
        memory_bias: Tensor,
    ) -> Tensor:
        """One step for the newest tokens x (U, B, size). The beams of an utterance share keys and frames."""
        assert self.cross_attn is not None
        assert self.cross_attn_ln is not None
        x = x + cache.attend(layer, self.attn, self.attn_ln(x), bias)
        query = self.cross_attn.project_query(self.cross_attn_ln(x))
        x = x + self.cross_attn.attend(query, *memory, memory_bias)
        out: Tensor = x + self.mlp(self.mlp_ln(x))
        return out


def sinusoids(length: int, size: int) -> Tensor:
    """(length, size): sines, then cosines, of wavelengths from 2 pi to 20000 pi."""
    rates = torch.exp(-math.log(10000) / (size // 2 - 1) * torch.arange(size // 2))
    angles = torch.arange(length).unsqueeze(1) * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)
