"""The Conformer encoder (Gulati et al. 2020), with ESPnet2's options and parameter names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from tympan.config.range import Range
from tympan.models.encoder.blocks import (
    BlockEncoder,
    build_self_attention,
    draw_stochastic_depth,
    per_layer,
    resolve_position_types,
)
from tympan.nn.activation import get_activation
from tympan.nn.attention import SelfAttentionContext
from tympan.nn.convolution import ConvolutionModule
from tympan.nn.dropout import Dropout
from tympan.nn.feed_forward import build_positionwise
from tympan.nn.input_layer import build_input_layer
from tympan.nn.layer_norm import LayerNorm
from tympan.nn.position import POSITION_CLASSES


class ConformerEncoder(BlockEncoder):
    """`encoder: conformer`.

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
            "conv2d", "conv2d1", "conv2d2", "conv2d6", "conv2d8", "conv1d1", "conv1d2", "conv1d3", "linear", "embed"
        ]
        | None = "conv2d",
        normalize_before: bool = True,
        concat_after: bool = False,
        positionwise_layer_type: Literal["linear", "conv1d", "conv1d-linear"] = "linear",
        positionwise_conv_kernel_size: Annotated[int, Range(1, 10_000)] = 3,
        macaron_style: bool = False,
        rel_pos_type: Literal["legacy", "latest"] = "legacy",
        pos_enc_layer_type: Literal["abs_pos", "scaled_abs_pos", "rel_pos", "legacy_rel_pos"] = "rel_pos",
        selfattention_layer_type: Literal["selfattn", "rel_selfattn", "legacy_rel_selfattn"] = "rel_selfattn",
        activation_type: Literal["hardtanh", "tanh", "relu", "selu", "swish", "gelu"] = "swish",
        use_cnn_module: bool = True,
        zero_triu: bool = False,
        cnn_module_kernel: Annotated[int, Range(1, 10_000)] = 31,
        padding_idx: Annotated[int, Range(-1_000_000, 1_000_000)] = -1,
        interctc_layer_idx: Annotated[Sequence[int], Range(1, 1_000)] = (),
        interctc_use_conditioning: bool = False,
        ctc_trim: bool = False,
        stochastic_depth_rate: Annotated[float | list[float], Range(0, below=1)] = 0.0,
        layer_drop_rate: Annotated[float, Range(0, below=1)] = 0.0,
        max_pos_emb_len: Annotated[int, Range(1, 10_000_000)] = 5000,
        qk_norm: bool = False,
        use_flash_attn: bool = True,
    ) -> None:
        attention, position = resolve_position_types(selfattention_layer_type, pos_enc_layer_type, rel_pos_type)
        embed = build_input_layer(
            input_layer,
            input_size=input_size,
            size=output_size,
            dropout_rate=dropout_rate,
            position=POSITION_CLASSES[position](output_size, positional_dropout_rate, max_pos_emb_len),
            padding_idx=padding_idx,
        )

        def build_feed_forward() -> nn.Module:
            return build_positionwise(
                positionwise_layer_type,
                size=output_size,
                hidden_size=linear_units,
                kernel_size=positionwise_conv_kernel_size,
                dropout_rate=dropout_rate,
                activation=get_activation(activation_type),
            )

        blocks = [
            ConformerBlock(
                output_size,
                self_attn=build_self_attention(
                    attention,
                    heads=attention_heads,
                    size=output_size,
                    dropout_rate=attention_dropout_rate,
                    zero_triu=zero_triu,
                    qk_norm=qk_norm,
                ),
                feed_forward=build_feed_forward(),
                feed_forward_macaron=build_feed_forward() if macaron_style else None,
                conv_module=(
                    ConvolutionModule(output_size, cnn_module_kernel, get_activation(activation_type))
                    if use_cnn_module
                    else None
                ),
                dropout_rate=dropout_rate,
                normalize_before=normalize_before,
                concat_after=concat_after,
                stochastic_depth_rate=rate,
            )
            for rate in per_layer(stochastic_depth_rate, num_blocks, "stochastic_depth_rate")
        ]
        kernel = max(cnn_module_kernel if use_cnn_module else 1, positionwise_conv_kernel_size)
        super().__init__(
            embed,
            blocks,
            LayerNorm(output_size) if normalize_before else None,
            output_size=output_size,
            layer_drop_rate=layer_drop_rate,
            interctc_layer_idx=interctc_layer_idx,
            interctc_use_conditioning=interctc_use_conditioning,
            reach=None if attention.startswith("legacy") else kernel // 2,
            ctc_trim=ctc_trim,
        )


class ConformerBlock(nn.Module):
    """Half a feed-forward (macaron), self-attention, convolution, (half) a feed-forward; each with a residual."""

    def __init__(
        self,
        size: int,
        *,
        self_attn: nn.Module,
        feed_forward: nn.Module,
        feed_forward_macaron: nn.Module | None,
        conv_module: nn.Module | None,
        dropout_rate: float,
        normalize_before: bool,
        concat_after: bool,
        stochastic_depth_rate: float,
    ) -> None:
        super().__init__()
        self.self_attn = self_attn
        self.feed_forward = feed_forward
        self.feed_forward_macaron = feed_forward_macaron
        self.conv_module = conv_module
        self.norm_ff = LayerNorm(size)
        self.norm_mha = LayerNorm(size)
        self.norm_ff_macaron = None if feed_forward_macaron is None else LayerNorm(size)
        self.norm_conv = None if conv_module is None else LayerNorm(size)
        self.norm_final = None if conv_module is None else LayerNorm(size)
        self.concat_linear = nn.Linear(2 * size, size) if concat_after else None
        self.dropout = Dropout(dropout_rate)
        self.normalize_before = normalize_before
        self.stochastic_depth_rate = stochastic_depth_rate

    def forward(self, x: Tensor, mask: Tensor, context: SelfAttentionContext) -> Tensor:
        """x (batch, time, size), mask (batch, time)."""
        factor = draw_stochastic_depth(self.stochastic_depth_rate, is_training=self.training)
        if factor is None:
            return x
        feed_forward_factor = factor
        if self.feed_forward_macaron is not None:
            assert self.norm_ff_macaron is not None
            feed_forward_factor = 0.5 * factor
            update = self.dropout(self.feed_forward_macaron(self._before(self.norm_ff_macaron, x), mask))
            x = self._after(self.norm_ff_macaron, x.add(update, alpha=feed_forward_factor))
        x = self._attend(x, context, factor)
        if self.conv_module is not None:
            assert self.norm_conv is not None
            update = self.dropout(self.conv_module(self._before(self.norm_conv, x), mask))
            x = self._after(self.norm_conv, x.add(update, alpha=factor))
        update = self.dropout(self.feed_forward(self._before(self.norm_ff, x), mask))
        x = self._after(self.norm_ff, x.add(update, alpha=feed_forward_factor))
        return x if self.norm_final is None else self.norm_final(x)

    def _attend(self, x: Tensor, context: SelfAttentionContext, factor: float) -> Tensor:
        normalized = self._before(self.norm_mha, x)
        update = self.self_attn(normalized, context)
        if self.concat_linear is None:
            update = self.dropout(update)
        else:
            update = self.concat_linear(torch.cat([normalized, update], dim=-1))
        return self._after(self.norm_mha, x.add(update, alpha=factor))

    def _before(self, norm: nn.Module, x: Tensor) -> Tensor:
        return norm(x) if self.normalize_before else x

    def _after(self, norm: nn.Module, x: Tensor) -> Tensor:
        return x if self.normalize_before else norm(x)
