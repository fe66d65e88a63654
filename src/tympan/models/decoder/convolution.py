"""Transformer decoders with lightweight or dynamic convolution instead of self-attention, with ESPnet2's options.

Differs from ESPnet2 on purpose: a step of the search sees as many earlier tokens as training does. ESPnet2's search
gives the convolution only the newest token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from torch import Tensor, nn

from tympan.config.range import Range
from tympan.errors import UserError
from tympan.models.decoder.transformer import ResidualBlock
from tympan.nn.activation import get_activation
from tympan.nn.attention import MultiHeadedAttention
from tympan.nn.beam_state import PER_UTTERANCE, STATIC, BeamState
from tympan.nn.checkpointing import call_layer
from tympan.nn.feed_forward import PositionwiseFeedForward
from tympan.nn.full_precision import at_least_float32
from tympan.nn.input_layer import InputSequence
from tympan.nn.layer_norm import LayerNorm
from tympan.nn.light_convolution import DynamicConvolution, LightConvolution, LightweightConvolution
from tympan.nn.masks import key_bias, length_mask
from tympan.nn.position import PositionalEncoding
from tympan.nn.typed_torch import ModuleList


@dataclass(frozen=True)
class ConvolutionDecoderState(BeamState):
    """The tokens within reach of the convolutions, by layer, and the encoder's frames (once per utterance)."""

    histories: tuple[Tensor, ...]  # (U, B, frames, size)
    memory: tuple[tuple[Tensor, Tensor], ...] = field(metadata=PER_UTTERANCE)
    memory_bias: Tensor = field(metadata=PER_UTTERANCE)
    length: int = field(default=0, metadata=STATIC)


class ConvolutionDecoder(nn.Module):
    """Base class of the four decoders; subclasses choose the convolution."""

    convolution: type[LightweightConvolution] | type[DynamicConvolution]
    is_2d = False

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
        input_layer: Literal["embed"] = "embed",
        use_output_layer: Literal[True] = True,
        normalize_before: bool = True,
        concat_after: bool = False,
        conv_wshare: Annotated[int, Range(1, 10_000)] = 4,
        conv_kernel_length: Annotated[Sequence[int], Range(1, 10_000)] = (11, 11, 11, 11, 11, 11),
        conv_usebias: bool = False,
    ) -> None:
        super().__init__()
        size = encoder_output_size
        if size % attention_heads:
            raise UserError(
                f"the encoder's output size {size} must be a multiple of attention_heads, which is {attention_heads}"
            )
        self.embed = InputSequence(nn.Embedding(vocab_size, size), PositionalEncoding(size, positional_dropout_rate))
        self.after_norm = LayerNorm(size) if normalize_before else None
        self.output_layer = nn.Linear(size, vocab_size)
        self.decoders: ModuleList[ConvolutionBlock] = ModuleList(
            ConvolutionBlock(
                size,
                self_attn=self.convolution(
                    size,
                    groups=conv_wshare,
                    kernel_size=kernel_size,
                    dropout_rate=self_attention_dropout_rate,
                    is_causal=True,
                    has_bias=conv_usebias,
                    is_2d=self.is_2d,
                ),
                src_attn=MultiHeadedAttention(attention_heads, size, src_attention_dropout_rate),
                feed_forward=PositionwiseFeedForward(size, linear_units, dropout_rate, get_activation("relu")),
                dropout_rate=dropout_rate,
                normalize_before=normalize_before,
                concat_after=concat_after,
            )
            for kernel_size in kernels_of_blocks(conv_kernel_length, num_blocks)
        )
        self.grad_checkpointing = False

    def forward(self, memory: Tensor, memory_lengths: Tensor, ys_in: Tensor, ys_in_lengths: Tensor) -> Tensor:
        """Logits (batch, length, vocabulary) of the token after each of ys_in (sos first)."""
        x: Tensor = self.embed(ys_in).x
        memory_bias = key_bias(length_mask(memory_lengths, memory.size(1)), x.dtype)
        for block in self.decoders:
            x = call_layer(block, x, memory, memory_bias, is_checkpointed=self.training and self.grad_checkpointing)
        return self._read_out(x)

    def start(self, memory: Tensor, memory_lengths: Tensor, beams: int) -> ConvolutionDecoderState:
        """The state before any token: memory (U, frames, size)."""
        utterances, _, size = memory.shape
        return ConvolutionDecoderState(
            histories=(memory.new_zeros(utterances, beams, 0, size),) * len(self.decoders),
            memory=tuple(block.src_attn.project_memory(memory) for block in self.decoders),
            memory_bias=key_bias(length_mask(memory_lengths, memory.size(1)), memory.dtype),
        )

    def step(self, tokens: Tensor, state: ConvolutionDecoderState) -> tuple[Tensor, ConvolutionDecoderState]:
        """Log probabilities (U, B, vocabulary) of the token after `tokens` (U, B), which begin with sos."""
        embedding, position = self.embed[0], self.embed[1]
        x: Tensor = position(embedding(tokens.reshape(-1, 1)), state.length).x.view(*tokens.shape, -1)
        histories = []
        for block, history, memory in zip(self.decoders, state.histories, state.memory, strict=True):
            x, history = block.step(x, history, memory, state.memory_bias)
            histories.append(history)
        log_probs = at_least_float32(self._read_out(x)).log_softmax(-1)
        return log_probs, ConvolutionDecoderState(tuple(histories), state.memory, state.memory_bias, state.length + 1)

    def set_grad_checkpointing(self, is_on: bool) -> None:
        """Recompute activations of the blocks in the backward pass, to save memory."""
        self.grad_checkpointing = is_on

    def _read_out(self, x: Tensor) -> Tensor:
        out: Tensor = self.output_layer(x if self.after_norm is None else self.after_norm(x))
        return out


class LightweightConvDecoder(ConvolutionDecoder):
    """`decoder: lightweight_conv`."""

    convolution = LightweightConvolution


class LightweightConv2dDecoder(ConvolutionDecoder):
    """`decoder: lightweight_conv2d`."""

    convolution = LightweightConvolution
    is_2d = True


class DynamicConvDecoder(ConvolutionDecoder):
    """`decoder: dynamic_conv`."""

    convolution = DynamicConvolution


class DynamicConv2dDecoder(ConvolutionDecoder):
    """`decoder: dynamic_conv2d`."""

    convolution = DynamicConvolution
    is_2d = True


class ConvolutionBlock(ResidualBlock[LightConvolution]):
    """Causal convolution, attention to the encoder's output, feed-forward; each with a residual connection."""

    def forward(self, x: Tensor, memory: Tensor, memory_bias: Tensor) -> Tensor:
        """x (batch, length, size)."""
        query = self._before(self.norm1, x)
        x = self._add(self.norm1, x, query, self.self_attn(query), self.concat_linear1)
        query = self._before(self.norm2, x)
        x = self._add(self.norm2, x, query, self.src_attn.attend_to(query, memory, memory_bias), self.concat_linear2)
        return self._feed_forward(x)

    def step(
        self, x: Tensor, history: Tensor, memory: tuple[Tensor, Tensor], memory_bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        """One step for the newest tokens x (U, B, size), and the next history."""
        query = self._before(self.norm1, x)
        out, history = self.self_attn.step(query, history)
        x = self._add(self.norm1, x, query, out, self.concat_linear1)
        query = self._before(self.norm2, x)
        out = self.src_attn.attend(self.src_attn.project_query(query), *memory, memory_bias)
        x = self._add(self.norm2, x, query, out, self.concat_linear2)
        return self._feed_forward(x), history


def kernels_of_blocks(lengths: Sequence[int], num_blocks: int) -> Sequence[int]:
    """UserError unless there is one kernel size per block."""
    if len(lengths) != num_blocks:
        raise UserError(
            f"conv_kernel_length has {len(lengths)} values, but num_blocks is {num_blocks}: it needs one "
            "value per block"
        )
    return lengths
