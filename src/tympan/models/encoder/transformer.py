"""The Transformer encoder, with ESPnet2's options and parameter names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from tympan.config.range import Range
from tympan.errors import UserError
from tympan.models.encoder.blocks import BlockEncoder, build_self_attention
from tympan.nn.activation import get_activation
from tympan.nn.attention import SelfAttentionContext
from tympan.nn.dropout import Dropout
from tympan.nn.feed_forward import build_positionwise
from tympan.nn.input_layer import build_input_layer
from tympan.nn.layer_norm import LayerNorm
from tympan.nn.position import ConvolutionalPosition, PositionalEncoding


class TransformerEncoder(BlockEncoder):
    """`encoder: transformer`.

    `use_flash_attn` is accepted but has no effect: torch's fused attention is used whenever possible.
    """

    def __init__(
        self,
        *,
        input_size: int,
        output_size: Annotated[int, Range(1, 1_000_000)] = 256,
        attention_heads: Annotated[int, Range(1, 10_000)] = 4,
        linear_units: Annotated[int, Range(1, 1_000_000)] = 2048,
        num_blocks: Annotated[int, Range(1, 1_000)] = 6,
        dropout_rate: Annotated[float, Range(0, below=1)] = 0.1,
        positional_dropout_rate: Annotated[float, Range(0, below=1)] = 0.1,
        attention_dropout_rate: Annotated[float, Range(0, below=1)] = 0.0,
        input_layer: Literal[
            "conv2d",
            "conv2d1",
            "conv2d2",
            "conv2d6",
            "conv2d8",
            "conv1d1",
            "conv1d2",
            "conv1d3",
            "linear",
            "embed",
            "wav2vec",
        ]
        | None = "conv2d",
        pos_enc_layer_type: Literal["abs_pos", "conv"] = "abs_pos",
        normalize_before: bool = True,
        concat_after: bool = False,
        positionwise_layer_type: Literal["linear", "conv1d", "conv1d-linear"] = "linear",
        positionwise_conv_kernel_size: Annotated[int, Range(1, 10_000)] = 1,
        padding_idx: Annotated[int, Range(-1_000_000, 1_000_000)] = -1,
        interctc_layer_idx: Annotated[Sequence[int], Range(1, 1_000)] = (),
        interctc_use_conditioning: bool = False,
        layer_drop_rate: Annotated[float, Range(0, below=1)] = 0.0,
        qk_norm: bool = False,
        use_flash_attn: bool = True,
    ) -> None:
        if pos_enc_layer_type == "conv" and input_layer != "wav2vec":
            raise UserError(
                f"encoder_conf pos_enc_layer_type: conv needs input_layer: wav2vec, found {input_layer or 'null'}"
            )
        embed = build_input_layer(
            input_layer,
            input_size=input_size,
            size=output_size,
            dropout_rate=dropout_rate,
            position=(
                ConvolutionalPosition(output_size)
                if pos_enc_layer_type == "conv"
                else PositionalEncoding(output_size, positional_dropout_rate)
            ),
            padding_idx=padding_idx,
            is_linear_rectified=True,
            is_position_optional=True,
            is_normalized=normalize_before,
        )
        blocks = transformer_blocks(
            num_blocks,
            size=output_size,
            heads=attention_heads,
            hidden_size=linear_units,
            dropout_rate=dropout_rate,
            attention_dropout_rate=attention_dropout_rate,
            normalize_before=normalize_before,
            concat_after=concat_after,
            positionwise=positionwise_layer_type,
            kernel_size=positionwise_conv_kernel_size,
            qk_norm=qk_norm,
        )
        super().__init__(
            embed,
            blocks,
            LayerNorm(output_size) if normalize_before else None,
            output_size=output_size,
            layer_drop_rate=layer_drop_rate,
            interctc_layer_idx=interctc_layer_idx,
            interctc_use_conditioning=interctc_use_conditioning,
            # The convolution over positions would see the neighbours of concatenated utterances
            reach=None if pos_enc_layer_type == "conv" else positionwise_conv_kernel_size // 2,
        )


def transformer_blocks(
    number: int,
    *,
    size: int,
    heads: int,
    hidden_size: int,
    dropout_rate: float,
    attention_dropout_rate: float,
    normalize_before: bool,
    concat_after: bool,
    positionwise: Literal["linear", "conv1d", "conv1d-linear"],
    kernel_size: int,
    qk_norm: bool = False,
) -> list[TransformerBlock]:
    """Build blocks of the same options."""
    return [
        TransformerBlock(
            size,
            self_attn=build_self_attention(
                "selfattn", heads=heads, size=size, dropout_rate=attention_dropout_rate, qk_norm=qk_norm
            ),
            feed_forward=build_positionwise(
                positionwise,
                size=size,
                hidden_size=hidden_size,
                kernel_size=kernel_size,
                dropout_rate=dropout_rate,
                activation=get_activation("relu"),
            ),
            dropout_rate=dropout_rate,
            normalize_before=normalize_before,
            concat_after=concat_after,
        )
        for _ in range(number)
    ]


class TransformerBlock(nn.Module):
    """Self-attention and feed-forward, each with a residual connection."""

    def __init__(
        self,
        size: int,
        *,
        self_attn: nn.Module,
        feed_forward: nn.Module,
        dropout_rate: float,
        normalize_before: bool,
        concat_after: bool,
    ) -> None:
        super().__init__()
        self.self_attn = self_attn
        self.feed_forward = feed_forward
        self.norm1 = LayerNorm(size)
        self.norm2 = LayerNorm(size)
        self.concat_linear = nn.Linear(2 * size, size) if concat_after else None
        self.dropout = Dropout(dropout_rate)
        self.normalize_before = normalize_before

    def forward(self, x: Tensor, mask: Tensor, context: SelfAttentionContext) -> Tensor:
        """x (batch, time, size), mask (batch, time)."""
        normalized = self.norm1(x) if self.normalize_before else x
        update: Tensor = self.self_attn(normalized, context)
        if self.concat_linear is None:
            update = self.dropout(update)
        else:
            update = self.concat_linear(torch.cat([normalized, update], dim=-1))
        x = x + update if self.normalize_before else self.norm1(x + update)
        update = self.dropout(self.feed_forward(self.norm2(x) if self.normalize_before else x, mask))
        return x + update if self.normalize_before else self.norm2(x + update)
