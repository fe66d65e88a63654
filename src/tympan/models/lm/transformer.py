"""Transformer language model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from tympan.config.range import Range
from tympan.errors import UserError
from tympan.nn.attention import MultiHeadedAttention
from tympan.nn.beam_state import BeamState
from tympan.nn.dropout import Dropout
from tympan.nn.feed_forward import PositionwiseFeedForward
from tympan.nn.input_layer import build_input_layer
from tympan.nn.layer_norm import LayerNorm
from tympan.nn.masks import causal_bias, key_bias
from tympan.nn.position import PositionalEncoding
from tympan.nn.prefix_cache import PrefixCache
from tympan.nn.typed_torch import ModuleList

# Shapes: U utterances, B beams, N = U * B (or the sentences of a batch), T tokens, V vocabulary.

_BLANK = 0
"""ESPnet2 masks token 0, its padding, in attention. A search can select it, so it is masked there too."""


@dataclass(frozen=True)
class TransformerLmState(BeamState):
    tokens: PrefixCache


class TransformerLm(nn.Module):
    """Embedding, causal Transformer blocks, projection onto the vocabulary."""

    def __init__(
        self,
        vocab_size: int,
        *,
        pos_enc: Literal["sinusoidal"] | None = None,
        embed_unit: Annotated[int, Range(1, 1_000_000)] = 128,
        att_unit: Annotated[int, Range(1, 1_000_000)] = 256,
        head: Annotated[int, Range(1, 10_000)] = 2,
        unit: Annotated[int, Range(1, 1_000_000)] = 1024,
        layer: Annotated[int, Range(1, 1_000)] = 4,
        dropout_rate: Annotated[float, Range(0, below=1)] = 0.1,
        positional_dropout_rate: Annotated[float, Range(0, below=1)] = 0.1,
        attention_dropout_rate: Annotated[float, Range(0, below=1)] = 0.1,
    ) -> None:
        super().__init__()
        if att_unit % head:
            raise UserError(
                f"lm_conf: att_unit must be a multiple of head, but att_unit is {att_unit} and head is {head}"
            )
        self.heads, self.head_size = head, att_unit // head
        self.embed = nn.Embedding(vocab_size, embed_unit)
        self.encoder = _Encoder(
            PositionalEncoding(att_unit, positional_dropout_rate) if pos_enc == "sinusoidal" else None,
            input_size=embed_unit,
            size=att_unit,
            heads=head,
            hidden_size=unit,
            blocks=layer,
            dropout_rate=dropout_rate,
            attention_dropout_rate=attention_dropout_rate,
        )
        self.decoder = nn.Linear(att_unit, vocab_size)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (N, T), sos first -> logits (N, T, V)."""
        out: Tensor = self.decoder(self.encoder(self.embed(tokens), tokens != _BLANK))
        return out

    def start(self, utterances: int, beams: int, device: torch.device, dtype: torch.dtype) -> TransformerLmState:
        size = self.heads * self.head_size
        layers = len(self.encoder.encoders)
        return TransformerLmState(PrefixCache.empty(layers, utterances, beams, size, dtype=dtype, device=device))

    def step(self, tokens: Tensor, state: TransformerLmState) -> tuple[Tensor, TransformerLmState]:
        """Last tokens (U, B) -> log-probabilities of the next (U, B, V)."""
        cache = state.tokens.extended(is_key=tokens != _BLANK)
        bias = cache.bias()
        x = self.encoder.enter(self.embed(tokens.reshape(-1, 1)), first=state.tokens.length).view(*tokens.shape, -1)
        for layer, block in enumerate(self.encoder.encoders):
            x = block.step(x, layer, cache, bias)
        return self.decoder(self.encoder.after_norm(x)).log_softmax(dim=-1), TransformerLmState(cache)


class _Encoder(nn.Module):
    def __init__(
        self,
        position: PositionalEncoding | None,
        *,
        input_size: int,
        size: int,
        heads: int,
        hidden_size: int,
        blocks: int,
        dropout_rate: float,
        attention_dropout_rate: float,
    ) -> None:
        super().__init__()
        self.embed = build_input_layer(
            "linear",
            input_size=input_size,
            size=size,
            dropout_rate=dropout_rate,
            position=nn.Identity(),
            padding_idx=-1,
            is_linear_rectified=True,
        )
        self.position = position
        self.encoders: ModuleList[_Block] = ModuleList(
            _Block(
                size,
                MultiHeadedAttention(heads, size, attention_dropout_rate),
                PositionwiseFeedForward(size, hidden_size, dropout_rate, nn.ReLU()),
                dropout_rate,
            )
            for _ in range(blocks)
        )
        self.after_norm = LayerNorm(size)

    def enter(self, x: Tensor, first: int = 0) -> Tensor:
        """Embedded tokens (N, T, input size) as input of the first block; `first` is the position of x[:, 0]."""
        x = self.embed(x).x
        return x if self.position is None else self.position(x, first).x

    def forward(self, x: Tensor, is_key: Tensor) -> Tensor:
        x = self.enter(x)
        # The sum for a token that is both masked and in the future must not overflow in half precision.
        bias = torch.minimum(key_bias(is_key, x.dtype), causal_bias(x.size(1), x.dtype, x.device))
        for block in self.encoders:
            x = block(x, bias)
        out: Tensor = self.after_norm(x)
        return out


class _Block(nn.Module):
    """Self-attention and feed-forward, each with pre-normalization and a residual connection."""

    def __init__(
        self, size: int, self_attn: MultiHeadedAttention, feed_forward: PositionwiseFeedForward, dropout_rate: float
    ) -> None:
        super().__init__()
        self.self_attn = self_attn
        self.feed_forward = feed_forward
        self.norm1 = LayerNorm(size)
        self.norm2 = LayerNorm(size)
        self.dropout = Dropout(dropout_rate)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        return self._feed_forward(x + self.dropout(self.self_attn.attend_to_self(self.norm1(x), bias)))

    def step(self, x: Tensor, layer: int, cache: PrefixCache, bias: Tensor) -> Tensor:
        """One step: the next token x (U, B, size) of every hypothesis attends to itself and the previous ones."""
        return self._feed_forward(x + cache.attend(layer, self.self_attn, self.norm1(x), bias))

    def _feed_forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.dropout(self.feed_forward(self.norm2(x)))
        return out
