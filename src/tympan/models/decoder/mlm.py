"""The decoder of Mask-CTC: a Transformer that fills in masked tokens and sees all others (Higuchi et al. 2020)."""

from __future__ import annotations

from typing import Annotated, Literal

from torch import Tensor, nn

from tympan.config.range import Range
from tympan.errors import UserError
from tympan.models.decoder.transformer import DecoderBlock
from tympan.nn.activation import get_activation
from tympan.nn.attention import MultiHeadedAttention
from tympan.nn.checkpointing import call_layer
from tympan.nn.feed_forward import PositionwiseFeedForward
from tympan.nn.input_layer import InputSequence
from tympan.nn.layer_norm import LayerNorm
from tympan.nn.masks import key_bias, length_mask
from tympan.nn.position import PositionalEncoding
from tympan.nn.typed_torch import ModuleList


class MlmDecoder(nn.Module):
    """`decoder: mlm`, for `model: maskctc`. Its vocabulary has one token more than the model's: the mask, as the last.

    Shapes: memory (batch, frames, size); tokens (batch, length).
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
        input_layer: Literal["embed"] = "embed",
        use_output_layer: Literal[True] = True,
        normalize_before: bool = True,
        concat_after: bool = False,
    ) -> None:
        super().__init__()
        size = encoder_output_size
        if size % attention_heads:
            raise UserError(
                f"the encoder's output size {size} must be a multiple of attention_heads, which is {attention_heads}"
            )
        self.mask_token = vocab_size
        self.embed = InputSequence(
            nn.Embedding(vocab_size + 1, size), PositionalEncoding(size, positional_dropout_rate)
        )
        self.after_norm = LayerNorm(size) if normalize_before else None
        self.output_layer = nn.Linear(size, vocab_size + 1)
        self.decoders: ModuleList[DecoderBlock] = ModuleList(
            DecoderBlock(
                size,
                self_attn=MultiHeadedAttention(attention_heads, size, self_attention_dropout_rate),
                src_attn=MultiHeadedAttention(attention_heads, size, src_attention_dropout_rate),
                feed_forward=PositionwiseFeedForward(size, linear_units, dropout_rate, get_activation("relu")),
                dropout_rate=dropout_rate,
                normalize_before=normalize_before,
                concat_after=concat_after,
            )
            for _ in range(num_blocks)
        )
        self.grad_checkpointing = False

    def forward(self, memory: Tensor, memory_lengths: Tensor, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Logits (batch, length, vocabulary and mask) of the token at every position."""
        x: Tensor = self.embed(tokens).x
        self_bias = key_bias(length_mask(lengths, tokens.size(1)), x.dtype)
        memory_bias = key_bias(length_mask(memory_lengths, memory.size(1)), x.dtype)
        for block in self.decoders:
            is_checkpointed = self.training and self.grad_checkpointing
            x = call_layer(block, x, self_bias, memory, memory_bias, is_checkpointed=is_checkpointed)
        out: Tensor = self.output_layer(x if self.after_norm is None else self.after_norm(x))
        return out

    def set_grad_checkpointing(self, is_on: bool) -> None:
        """Recompute activations of the blocks in the backward pass, to save memory."""
        self.grad_checkpointing = is_on
