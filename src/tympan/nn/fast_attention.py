"""Additive attention in linear time (Wu et al. 2021, Fastformer).

Shapes: x (batch, time, size).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from tympan.nn.attention import SelfAttentionContext
from tympan.nn.dropout import Dropout


class FastSelfAttention(nn.Module):
    """A pooled query is multiplied with every key, and a pooled key with every query; queries serve as values."""

    def __init__(self, heads: int, size: int, dropout_rate: float) -> None:
        super().__init__()
        assert size % heads == 0, (size, heads)
        self.heads = heads
        self.head_size = size // heads
        self.query = nn.Linear(size, size)
        self.query_att = nn.Linear(size, heads)
        self.key = nn.Linear(size, size)
        self.key_att = nn.Linear(size, heads)
        self.transform = nn.Linear(size, size)
        self.dropout = Dropout(dropout_rate)

    def reset_own_parameters(self) -> None:
        """The initialization of the paper, independent of the model's."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor, context: SelfAttentionContext) -> Tensor:
        query, key = self.query(x), self.key(x)
        pooled_query = self._pool(query, self.query_att(query), context.bias)
        key = key * self.dropout(pooled_query.flatten(2))
        pooled_key = self.dropout(self._pool(key, self.key_att(key), context.bias))
        mixed = self._split(query) * pooled_key
        out: Tensor = self.dropout(self.transform(mixed.flatten(2))) + query
        return out

    def _pool(self, x: Tensor, scores: Tensor, bias: Tensor) -> Tensor:
        """(batch, 1, heads, head size): the mean over time, weighted by `scores` (batch, time, heads)."""
        scores = scores.transpose(1, 2) / math.sqrt(self.head_size) + bias.squeeze(2)
        return torch.einsum("bht,bthd->bhd", scores.softmax(-1), self._split(x)).unsqueeze(1)

    def _split(self, x: Tensor) -> Tensor:
        return torch.unflatten(x, -1, (self.heads, self.head_size))
