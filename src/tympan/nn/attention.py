"""Multi-head attention: plain, and with relative positions (Dai et al. 2019, 3.3).

Shapes: x (batch, time, size); q, k, v (batch, heads, time, head size). Masks are biases, added to the scores.
The scores are computed step by step on a CPU while training, where that is faster than torch's fused attention
(measured: 6.9 against 9.3 ms forward and backward for 8 x 125 frames); elsewhere the fused one takes the bias.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tympan.nn.dropout import Dropout
from tympan.nn.frozen import FrozenLinear, freeze_together
from tympan.nn.layer_norm import LayerNorm


@dataclass(frozen=True)
class SelfAttentionContext:
    """Inputs shared by all layers of an encoder."""

    bias: Tensor
    """(batch, 1, 1, time): 0 for valid frames, very negative for padding."""
    table: Tensor | None = None
    """(positions, size): sinusoids, for relative attention."""
    lengths: Tensor | None = None
    """(batch,): number of frames of each utterance, for legacy relative attention."""
    max_len: int = 0
    """The position at which the legacy table starts to count down, unless an input is longer."""
    spans: tuple[tuple[int, int], ...] | None = None
    """First and end frame of each utterance, if a batch of one contains several concatenated utterances.
    Not for legacy attention."""


class MultiHeadedAttention(nn.Module):
    """Scaled dot-product attention with `heads` heads."""

    NOT_FROZEN = ("linear_q", "linear_k", "linear_v")
    """Projections are frozen on first use, because only then is known which of them can be combined."""

    def __init__(self, heads: int, size: int, dropout_rate: float, *, qk_norm: bool = False) -> None:
        super().__init__()
        assert size % heads == 0, (size, heads)
        self.heads = heads
        self.head_size = size // heads
        self.linear_q = nn.Linear(size, size)
        self.linear_k = nn.Linear(size, size)
        self.linear_v = nn.Linear(size, size)
        self.linear_out = nn.Linear(size, size)
        self.dropout = Dropout(dropout_rate)
        self.q_norm: nn.Module = LayerNorm(self.head_size) if qk_norm else nn.Identity()
        self.k_norm: nn.Module = LayerNorm(self.head_size) if qk_norm else nn.Identity()
        self.keep_weights = False
        self.weights: Tensor | None = None
        self._frozen: dict[str, FrozenLinear] | None = None

    def freeze(self) -> None:
        """The projection weights no longer change from now on."""
        self._frozen = self._frozen or {}

    def forward(self, x: Tensor, context: SelfAttentionContext) -> Tensor:
        """Every frame attends to the frames of its utterance."""
        if context.spans is None:
            return self.attend_to_self(x, context.bias)
        q, k, v = self._project_all(x)
        q, k = self.q_norm(q), self.k_norm(k)
        out = torch.empty_like(v)
        for start, end in context.spans:
            span = slice(start, end)
            out[:, :, span] = _fused(q[:, :, span], k[:, :, span], v[:, :, span], None, dropout_p=0.0)
        return self._join_heads(out)

    def attend_to_self(self, x: Tensor, bias: Tensor) -> Tensor:
        """`bias` is broadcast to (batch, heads, time, time)."""
        q, k, v = self._project_all(x)
        return self.attend(self.q_norm(q), self.k_norm(k), v, bias)

    def attend_to(self, x: Tensor, memory: Tensor, bias: Tensor) -> Tensor:
        """Queries from `x`, keys and values from `memory`."""
        k, v = self.project_memory(memory)
        return self.attend(self.project_query(x), k, v, bias)

    def project_query(self, x: Tensor) -> Tensor:
        q: Tensor = self.q_norm(self.split_heads(self._project(x, "q")))
        return q

    def project_memory(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        k, v = self._project(memory, "kv").chunk(2, dim=-1)
        return self.k_norm(self.split_heads(k)), self.split_heads(v)

    def project_step(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """For one token: its query split into heads, and its key and value (batch, 1, size) for the cache."""
        q, k, v = self._project_all(x)
        return self.q_norm(q), self.k_norm(k).transpose(1, 2).flatten(2), v.transpose(1, 2).flatten(2)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        """(batch, queries, size) from projected queries, keys and values."""
        if self.keep_weights or (q.is_cpu and torch.is_grad_enabled()):
            scores = torch.matmul(q * (1.0 / math.sqrt(self.head_size)), k.transpose(-2, -1))
            out = self._mix(scores if bias is None else scores + bias, v)
        else:
            out = _fused(q, k, v, bias, dropout_p=self._dropout_p())
        return self._join_heads(out)

    def _mix(self, scores: Tensor, v: Tensor) -> Tensor:
        weights = scores.softmax(-1)
        if self.keep_weights:
            self.weights = weights.detach()
        return torch.matmul(self.dropout(weights), v)

    def _project_all(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self._project_flat(x)
        return self.split_heads(q), self.split_heads(k), self.split_heads(v)

    def _project_flat(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One product for queries, keys and values, each (batch, time, size)."""
        q, k, v = self._project(x, "qkv").chunk(3, dim=-1)
        return q, k, v

    def _project(self, x: Tensor, names: str) -> Tensor:
        """Queries, keys or values, or several of them concatenated, from one matrix product."""
        linears: list[nn.Linear] = [getattr(self, f"linear_{name}") for name in names]
        if self._frozen is None:
            if any(type(linear) is not nn.Linear for linear in linears):
                # A linear layer with an adapter does more than a product with its weight.
                return torch.cat([linear(x) for linear in linears], dim=-1)
            if len(linears) > 1:
                weight, bias = (torch.cat([getattr(linear, part) for linear in linears]) for part in ("weight", "bias"))
                return F.linear(x, weight, bias)
            layer: nn.Module = linears[0]
        else:
            if names not in self._frozen:
                self._frozen[names] = freeze_together(*linears)
            layer = self._frozen[names]
        projected: Tensor = layer(x)
        return projected

    def split_heads(self, x: Tensor) -> Tensor:
        """(batch, time, size) as (batch, heads, time, head size)."""
        return torch.unflatten(x, -1, (self.heads, self.head_size)).transpose(1, 2)

    def _join_heads(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear_out(x.transpose(1, 2).flatten(2))
        return out

    def _dropout_p(self) -> float:
        return self.dropout.p if self.training else 0.0


class RelPositionMultiHeadedAttention(MultiHeadedAttention):
    """Scores depend on the content and on the distance between query and key."""

    IS_TABLE_CENTERED = True
    """The table of a shorter input is the middle part of the table of a longer one."""

    def __init__(self, heads: int, size: int, dropout_rate: float, *, zero_triu: bool = False) -> None:
        super().__init__(heads, size, dropout_rate)
        self.zero_triu = zero_triu
        self.linear_pos = nn.Linear(size, size, bias=False)
        self.pos_bias_u = nn.Parameter(torch.empty(heads, self.head_size))
        self.pos_bias_v = nn.Parameter(torch.empty(heads, self.head_size))
        nn.init.xavier_uniform_(self.pos_bias_u)
        nn.init.xavier_uniform_(self.pos_bias_v)
        self._projected_table: Tensor | None = None

    def forward(self, x: Tensor, context: SelfAttentionContext) -> Tensor:
        assert context.table is not None
        batch, time, _ = x.shape
        q, k, v = self._project_flat(x)
        if context.spans is not None:
            return self._attend_in_spans(q, k, v, context)
        by_position = self._by_position(q + self.pos_bias_v.flatten(), self._project_table(context.table), context)
        scale = 1.0 / math.sqrt(self.head_size)
        q = q + self.pos_bias_u.flatten()
        if self.keep_weights or (q.is_cpu and torch.is_grad_enabled()):
            q, k, v = (self._by_head(part) for part in (q, k, v))
            scores = torch.baddbmm(by_position.flatten(0, 1), q, k.transpose(1, 2), beta=scale, alpha=scale)
            scores = scores.view(self.heads, batch, time, time).add_(context.bias.squeeze(1)).flatten(0, 1)
            weights = scores.softmax(-1)
            if self.keep_weights:
                self.weights = weights.detach().view(self.heads, batch, time, time).transpose(0, 1)
            out = torch.bmm(self.dropout(weights), v).view(self.heads, batch, time, -1).transpose(0, 1)
        else:
            q, k, v = (self.split_heads(part) for part in (q, k, v))
            bias = torch.add(context.bias, by_position.transpose(0, 1), alpha=scale)
            out = _fused(q, k, v, bias, dropout_p=self._dropout_p())
        return self._join_heads(out)

    def _by_head(self, x: Tensor) -> Tensor:
        """(batch, time, size) as (heads * batch, time, head size)."""
        return torch.unflatten(x, -1, (self.heads, self.head_size)).permute(2, 0, 1, 3).flatten(0, 1)

    def _attend_in_spans(self, q: Tensor, k: Tensor, v: Tensor, context: SelfAttentionContext) -> Tensor:
        assert context.spans is not None
        assert context.table is not None
        table = self._project_table(context.table)
        middle = table.size(2) // 2
        content = q + self.pos_bias_u.flatten()
        place = (q + self.pos_bias_v.flatten()).mul_(1.0 / math.sqrt(self.head_size))
        out = torch.empty_like(v, memory_format=torch.contiguous_format)
        for start, end in context.spans:
            own = table[:, :, middle - (end - start) + 1 : middle + end - start]
            bias = self._by_position(place[:, start:end], own, context).transpose(0, 1)
            query, key, value = (self.split_heads(part[:, start:end]) for part in (content, k, v))
            out[:, start:end] = _fused(query, key, value, bias, dropout_p=0.0).transpose(1, 2).flatten(2)
        joined: Tensor = self.linear_out(out)
        return joined

    def _project_table(self, table: Tensor) -> Tensor:
        """(heads, head size, positions). Once the projection is frozen, the longest table is cached."""
        if self._frozen is None or not self.IS_TABLE_CENTERED:
            return self._project_positions(table)
        if self._projected_table is None or self._projected_table.size(2) < len(table):
            self._projected_table = self._project_positions(table).contiguous()
        first = (self._projected_table.size(2) - len(table)) // 2
        return self._projected_table[:, :, first : first + len(table)]

    def _project_positions(self, table: Tensor) -> Tensor:
        return torch.unflatten(self.linear_pos(table), -1, (self.heads, self.head_size)).permute(1, 2, 0)

    def _by_position(self, queries: Tensor, table: Tensor, context: SelfAttentionContext) -> Tensor:
        """(heads, batch, time, time): every query against the position of every key.

        The table is the same for all utterances: one product per head instead of one per utterance and head.
        """
        batch, time, _ = queries.shape
        queries = queries.reshape(batch * time, self.heads, self.head_size).transpose(0, 1)
        scores = self._shift(torch.unflatten(torch.bmm(queries, table), 1, (batch, time)), context)
        return scores.tril() if self.zero_triu else scores

    def _shift(self, scores: Tensor, context: SelfAttentionContext) -> Tensor:
        """(heads, batch, time, time): of row i, the columns time - 1 - i to 2 * time - 2 - i. A view."""
        heads, batch, time, positions = scores.shape
        strides = (scores.stride(0), scores.stride(1), positions - 1, 1)
        offset = scores.storage_offset() + time - 1
        return scores.as_strided((heads, batch, time, time), strides, offset)


class LegacyRelPositionMultiHeadedAttention(RelPositionMultiHeadedAttention):
    """ESPnet's first relative attention: keys after the query get the scores of the next query's first columns.

    Its shift depends on the length of the input. Here that is the length of each utterance, not of the padded batch,
    so that padding changes nothing.
    """

    IS_TABLE_CENTERED = False

    def __init__(self, heads: int, size: int, dropout_rate: float) -> None:
        super().__init__(heads, size, dropout_rate)

    def _shift(self, scores: Tensor, context: SelfAttentionContext) -> Tensor:
        assert context.lengths is not None
        heads, batch, time, _ = scores.shape
        query = torch.arange(time, device=scores.device).unsqueeze(1)
        key = torch.arange(time, device=scores.device)
        lengths = context.lengths.view(-1, 1, 1)
        # The table counts down from the longest input; a shorter input starts further inside it.
        first = max(context.max_len, time) - lengths.clamp(min=context.max_len)
        past = query * time + (lengths - 1 - query + key)
        future = (query + 1) * time + (key - query - 2)
        index = (first + torch.where(key <= query, past, future)).clamp_(0, time * time - 1)
        index = index.view(1, batch, time * time).expand(heads, batch, time * time)
        shifted = scores.flatten(2).gather(2, index).view(heads, batch, time, time)
        return shifted.masked_fill(key == query + 1, 0.0)


def _fused(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, *, dropout_p: float) -> Tensor:
    bias = None if bias is None else bias.to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, bias, dropout_p=dropout_p)
