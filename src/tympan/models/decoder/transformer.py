"""The Transformer decoder, for whole sequences and step by step with caches.

Shapes: memory (batch, frames, size); ys_in (batch, length). In steps: U utterances, B beams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Generic, Literal, TypeVar

import torch
from torch import Tensor, nn

from tympan.config.range import Range
from tympan.errors import UserError
from tympan.nn.activation import get_activation
from tympan.nn.attention import MultiHeadedAttention
from tympan.nn.beam_state import PER_UTTERANCE, BeamState
from tympan.nn.checkpointing import call_layer
from tympan.nn.dropout import Dropout
from tympan.nn.feed_forward import PositionwiseFeedForward
from tympan.nn.full_precision import at_least_float32
from tympan.nn.input_layer import InputSequence
from tympan.nn.layer_norm import LayerNorm
from tympan.nn.masks import causal_bias, key_bias, length_mask
from tympan.nn.position import PositionalEncoding
from tympan.nn.prefix_cache import PrefixCache
from tympan.nn.typed_torch import ModuleList

Mixer = TypeVar("Mixer", bound=nn.Module)


@dataclass(frozen=True)
class TransformerDecoderState(BeamState):
    """Keys and values of the tokens so far, and of the encoder frames (once per utterance)."""

    tokens: PrefixCache
    memory: tuple[tuple[Tensor, Tensor], ...] = field(
        metadata=PER_UTTERANCE
    )  # per layer: (U, heads, frames, head size)
    memory_bias: Tensor = field(metadata=PER_UTTERANCE)  # (U, 1, 1, frames)


class TransformerDecoder(nn.Module):
    """`decoder: transformer`.

    `use_flash_attn` is accepted but has no effect: torch's fused attention is used whenever possible.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        encoder_output_size: int,
        attention_heads: Annotated[int, Range(1, 10_000)] = 4,
        linear_units: Annotated[int, Range(1, 1_000_000)] = 2048,
        num_blocks: Annotated[int, Range(1, 1_000)] = 6,
        dropout_rate: Annotated[float, Range(0, below=1)] = 0.1,
        positional_dropout_rate: Annotated[float, Range(0, below=1)] = 0.1,
        self_attention_dropout_rate: Annotated[float, Range(0, below=1)] = 0.0,
        src_attention_dropout_rate: Annotated[float, Range(0, below=1)] = 0.0,
        input_layer: Literal["embed", "linear"] = "embed",
        use_output_layer: bool = True,
        normalize_before: bool = True,
        concat_after: bool = False,
        layer_drop_rate: Annotated[float, Range(0, below=1)] = 0.0,
        qk_norm: bool = False,
        use_flash_attn: bool = True,
        gradient_checkpoint_layers: Annotated[Sequence[int], Range(0, 1_000)] = (),
    ) -> None:
        super().__init__()
        size = encoder_output_size
        if size % attention_heads:
            raise UserError(
                f"the encoder's output size {size} must be a multiple of attention_heads, which is {attention_heads}"
            )
        if input_layer == "linear":
            raise UserError(
                "decoder_conf input_layer: linear expects vectors, but the decoder input is tokens; use embed"
            )
        if not use_output_layer:
            raise UserError(
                "decoder_conf use_output_layer: false gives no token scores, so the decoder can't be trained; use true"
            )
        self.embed = InputSequence(nn.Embedding(vocab_size, size), PositionalEncoding(size, positional_dropout_rate))
        self.after_norm = LayerNorm(size) if normalize_before else None
        self.output_layer = nn.Linear(size, vocab_size)
        self.decoders: ModuleList[DecoderBlock] = ModuleList(
            DecoderBlock(
                size,
                self_attn=MultiHeadedAttention(attention_heads, size, self_attention_dropout_rate, qk_norm=qk_norm),
                src_attn=MultiHeadedAttention(attention_heads, size, src_attention_dropout_rate, qk_norm=qk_norm),
                feed_forward=PositionwiseFeedForward(size, linear_units, dropout_rate, get_activation("relu")),
                dropout_rate=dropout_rate,
                normalize_before=normalize_before,
                concat_after=concat_after,
            )
            for _ in range(num_blocks)
        )
        self.layer_drop_rate = layer_drop_rate
        self.checkpointed_layers = frozenset(gradient_checkpoint_layers)
        self.grad_checkpointing = False

    def forward(self, memory: Tensor, memory_lengths: Tensor, ys_in: Tensor, ys_in_lengths: Tensor) -> Tensor:
        """Logits (batch, length, vocabulary) of the token after each of ys_in (sos first)."""
        x: Tensor = self.embed(ys_in).x
        causal = causal_bias(ys_in.size(1), x.dtype, x.device)
        self_bias = key_bias(length_mask(ys_in_lengths, ys_in.size(1)), x.dtype) + causal
        memory_bias = key_bias(length_mask(memory_lengths, memory.size(1)), x.dtype)
        for number, block in enumerate(self.decoders, start=1):
            if self.training and self.layer_drop_rate > 0 and torch.rand(()).item() < self.layer_drop_rate:
                continue
            is_checkpointed = self.training and (self.grad_checkpointing or number in self.checkpointed_layers)
            x = call_layer(block, x, self_bias, memory, memory_bias, is_checkpointed=is_checkpointed)
        return self._read_out(x)

    def start(self, memory: Tensor, memory_lengths: Tensor, beams: int) -> TransformerDecoderState:
        """The state before any token: memory (U, frames, size)."""
        utterances, _, size = memory.shape
        return TransformerDecoderState(
            tokens=PrefixCache.empty(
                len(self.decoders), utterances, beams, size, dtype=memory.dtype, device=memory.device
            ),
            memory=tuple(block.src_attn.project_memory(memory) for block in self.decoders),
            memory_bias=key_bias(length_mask(memory_lengths, memory.size(1)), memory.dtype),
        )

    def step(self, tokens: Tensor, state: TransformerDecoderState) -> tuple[Tensor, TransformerDecoderState]:
        """Log probabilities (U, B, vocabulary) of the token after `tokens` (U, B), which begin with sos."""
        cache = state.tokens.extended()
        bias = cache.bias()
        embedding, position = self.embed[0], self.embed[1]
        x: Tensor = position(embedding(tokens.reshape(-1, 1)), state.tokens.length).x.view(*tokens.shape, -1)
        for layer, block in enumerate(self.decoders):
            x = block.step(x, layer, cache, bias, state.memory[layer], state.memory_bias)
        log_probs = at_least_float32(self._read_out(x)).log_softmax(-1)
        return log_probs, replace(state, tokens=cache)

    def set_grad_checkpointing(self, is_on: bool) -> None:
        """Recompute activations of the blocks in the backward pass, to save memory."""
        self.grad_checkpointing = is_on

    def _read_out(self, x: Tensor) -> Tensor:
        out: Tensor = self.output_layer(x if self.after_norm is None else self.after_norm(x))
        return out


class ResidualBlock(nn.Module, Generic[Mixer]):
    """The layers of a decoder block and their residual connections. `self_attn` mixes the tokens so far."""

    def __init__(
        self,
        size: int,
        *,
        self_attn: Mixer,
        src_attn: MultiHeadedAttention,
        feed_forward: nn.Module,
        dropout_rate: float,
        normalize_before: bool,
        concat_after: bool,
    ) -> None:
        super().__init__()
        self.self_attn: Mixer = self_attn
        self.src_attn = src_attn
        self.feed_forward = feed_forward
        self.norm1 = LayerNorm(size)
        self.norm2 = LayerNorm(size)
        self.norm3 = LayerNorm(size)
        self.concat_linear1 = nn.Linear(2 * size, size) if concat_after else None
        self.concat_linear2 = nn.Linear(2 * size, size) if concat_after else None
        self.dropout = Dropout(dropout_rate)
        self.normalize_before = normalize_before

    def _add(self, norm: LayerNorm, x: Tensor, query: Tensor, update: Tensor, concat: nn.Module | None) -> Tensor:
        update = self.dropout(update) if concat is None else concat(torch.cat([query, update], dim=-1))
        return x + update if self.normalize_before else norm(x + update)

    def _feed_forward(self, x: Tensor) -> Tensor:
        update: Tensor = self.dropout(self.feed_forward(self._before(self.norm3, x)))
        return x + update if self.normalize_before else self.norm3(x + update)

    def _before(self, norm: LayerNorm, x: Tensor) -> Tensor:
        return norm(x) if self.normalize_before else x


class DecoderBlock(ResidualBlock[MultiHeadedAttention]):
    """Causal self-attention, attention to the encoder's output, feed-forward; each with a residual connection."""

    def forward(self, x: Tensor, self_bias: Tensor, memory: Tensor, memory_bias: Tensor) -> Tensor:
        """x (batch, length, size)."""
        query = self._before(self.norm1, x)
        x = self._add(self.norm1, x, query, self.self_attn.attend_to_self(query, self_bias), self.concat_linear1)
        query = self._before(self.norm2, x)
        x = self._add(self.norm2, x, query, self.src_attn.attend_to(query, memory, memory_bias), self.concat_linear2)
        return self._feed_forward(x)

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
        query = self._before(self.norm1, x)
        x = self._add(self.norm1, x, query, cache.attend(layer, self.self_attn, query, bias), self.concat_linear1)
        query = self._before(self.norm2, x)
        out = self.src_attn.attend(self.src_attn.project_query(query), *memory, memory_bias)
        x = self._add(self.norm2, x, query, out, self.concat_linear2)
        return self._feed_forward(x)
