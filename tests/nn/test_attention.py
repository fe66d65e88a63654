"""Attention against slow references written from the papers' formulas."""

from __future__ import annotations

import math

import pytest
import torch

from tympan.nn.attention import (
    LegacyRelPositionMultiHeadedAttention,
    MultiHeadedAttention,
    RelPositionMultiHeadedAttention,
    SelfAttentionContext,
)
from tympan.nn.masks import key_bias, length_mask
from tympan.nn.position import LegacyRelPositionalEncoding, RelPositionalEncoding, sinusoids

LENGTHS = torch.tensor([6, 4])


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def context_of(x: torch.Tensor, table: torch.Tensor | None = None, max_len: int = 0) -> SelfAttentionContext:
    return SelfAttentionContext(key_bias(length_mask(LENGTHS, x.size(1)), x.dtype), table, LENGTHS, max_len)


def reference_output(attention: MultiHeadedAttention, scores: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """scores (heads, time, time) of one utterance x (time, size)."""
    values = attention.linear_v(x).view(len(x), attention.heads, -1).transpose(0, 1)
    out = (scores / math.sqrt(attention.head_size)).softmax(-1) @ values
    return attention.linear_out(out.transpose(0, 1).reshape(len(x), -1))


def project(attention: MultiHeadedAttention, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    q = attention.linear_q(x).view(len(x), attention.heads, -1)
    k = attention.linear_k(x).view(len(x), attention.heads, -1)
    return q, k


def test_relative_attention_scores_every_pair_by_its_distance(x: torch.Tensor) -> None:
    torch.manual_seed(0)
    attention = RelPositionMultiHeadedAttention(2, 8, 0.0).double()
    table = RelPositionalEncoding(8, 0.0)(x).table
    out = attention(x, context_of(x, table))
    for row, length in enumerate(LENGTHS.tolist()):
        q, k = project(attention, x[row, :length])
        scores = torch.empty(2, length, length, dtype=torch.float64)
        for i in range(length):
            for j in range(length):
                position = sinusoids(torch.tensor([i - j]), 8).double()
                p = attention.linear_pos(position).view(2, -1)
                content = ((q[i] + attention.pos_bias_u) * k[j]).sum(-1)
                scores[:, i, j] = content + ((q[i] + attention.pos_bias_v) * p).sum(-1)
        expected = reference_output(attention, scores, x[row, :length])
        torch.testing.assert_close(out[row, :length], expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("max_len", [10, 5])
def test_legacy_attention_shifts_as_its_shape_trick_does_for_each_utterance_alone(
    x: torch.Tensor, max_len: int
) -> None:
    torch.manual_seed(0)
    attention = LegacyRelPositionMultiHeadedAttention(2, 8, 0.0).double()
    positioned = LegacyRelPositionalEncoding(8, 0.0, max_len)(x)
    out = attention(x, context_of(x, positioned.table, positioned.max_len))
    for row, length in enumerate(LENGTHS.tolist()):
        q, k = project(attention, x[row, :length])
        start = max(max_len, length)
        table = sinusoids(torch.arange(start - 1, start - 1 - length, -1), 8).double()
        p = attention.linear_pos(table).view(length, 2, -1)
        raw = torch.einsum("ihd,jhd->hij", q + attention.pos_bias_v, p)
        # Prepend a column of zeros, reshape to (time + 1, time), and drop the first row, as in Dai et al.
        padded = torch.cat([torch.zeros(2, length, 1, dtype=torch.float64), raw], dim=-1)
        shifted = padded.view(2, length + 1, length)[:, 1:].reshape(2, length, length)
        scores = torch.einsum("ihd,jhd->hij", q + attention.pos_bias_u, k) + shifted
        expected = reference_output(attention, scores, x[row, :length])
        torch.testing.assert_close(out[row, :length], expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("kind", ["plain", "relative", "legacy"])
def test_fused_and_stepwise_attention_agree(x: torch.Tensor, kind: str) -> None:
    torch.manual_seed(0)
    x = x.float()
    if kind == "plain":
        attention, context = MultiHeadedAttention(2, 8, 0.0, qk_norm=True), context_of(x)
    elif kind == "relative":
        attention = RelPositionMultiHeadedAttention(2, 8, 0.0, zero_triu=True)
        context = context_of(x, RelPositionalEncoding(8, 0.0)(x).table)
    else:
        attention = LegacyRelPositionMultiHeadedAttention(2, 8, 0.0)
        context = context_of(x, LegacyRelPositionalEncoding(8, 0.0)(x).table, 5000)
    stepwise = attention(x, context)
    with torch.no_grad():
        fused = attention(x, context)
        attention.keep_weights = True
        attention(x, context)
    torch.testing.assert_close(stepwise, fused, atol=1e-6, rtol=1e-5)
    assert attention.weights.shape == (2, 2, 6, 6)
    torch.testing.assert_close(attention.weights.sum(-1), torch.ones(2, 2, 6))
    assert attention.weights[1, :, :, 4:].eq(0).all()


def test_gradients_of_the_relative_shift(x: torch.Tensor) -> None:
    torch.manual_seed(0)
    attention = RelPositionMultiHeadedAttention(2, 8, 0.0).double()
    table = RelPositionalEncoding(8, 0.0)(x).table
    assert torch.autograd.gradcheck(lambda x: attention(x, context_of(x, table)), (x.requires_grad_(),))


def test_utterance_of_length_0_stays_finite() -> None:
    x = torch.randn(1, 3, 8)
    mask = torch.zeros(1, 3, dtype=torch.bool)
    for dtype in (torch.float32, torch.float16):
        attention = MultiHeadedAttention(2, 8, 0.0).to(dtype)
        assert attention(x.to(dtype), SelfAttentionContext(key_bias(mask, dtype))).isfinite().all()
