"""The E-Branchformer encoder (Kim et al. 2022), with ESPnet2's options and parameter names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from tympan.config.range import Range
from tympan.models.encoder.blocks import (
    BlockEncoder,
    build_self_attention,
    resolve_position_types,
)
from tympan.nn.activation import get_activation
from tympan.nn.attention import SelfAttentionContext
from tympan.nn.cgmlp import ConvolutionalGatingMLP
from tympan.nn.convolution import DepthwiseConv1d
from tympan.nn.dropout import Dropout
from tympan.nn.feed_forward import PositionwiseFeedForward
from tympan.nn.input_layer import build_input_layer
from tympan.nn.layer_norm import LayerNorm
from tympan.nn.position import POSITION_CLASSES


class EBranchformerEncoder(BlockEncoder):
    """`encoder: e_branchformer`. Intermediate CTC uses outputs without the final normalization, as in ESPnet2.

    `use_flash_attn` is accepted but has no effect: torch's fused attention is used whenever possible.
    """

    def __init__(
        self,
        *,
        input_size: int,
        output_size: Annotated[int, Range(1, 1_000_000)] = 256,
        attention_heads: Annotated[int, Range(1, 10_000)] = 4,
        attention_layer_type: Literal[
            "selfattn", "rel_selfattn", "legacy_rel_selfattn", "fast_selfattn"
        ] = "rel_selfattn",
        pos_enc_layer_type: Literal["abs_pos", "scaled_abs_pos", "rel_pos", "legacy_rel_pos"] = "rel_pos",
        rel_pos_type: Literal["legacy", "latest"] = "latest",
        cgmlp_linear_units: Annotated[int, Range(1, 1_000_000)] = 2048,
        cgmlp_conv_kernel: Annotated[int, Range(1, 10_000)] = 31,
        use_linear_after_conv: bool = False,
        gate_activation: Literal["identity", "hardtanh", "tanh", "relu", "selu", "swish", "gelu"] = "identity",
        num_blocks: Annotated[int, Range(1, 1_000)] = 12,
        dropout_rate: Annotated[float, Range(0, below=1)] = 0.1,
        positional_dropout_rate: Annotated[float, Range(0, below=1)] = 0.1,
        attention_dropout_rate: Annotated[float, Range(0, below=1)] = 0.0,
        input_layer: Literal[
            "conv2d", "conv2d1", "conv2d2", "conv2d6", "conv2d8", "conv1d1", "conv1d2", "conv1d3", "linear", "embed"
        ]
        | None = "conv2d",
        zero_triu: bool = False,
        padding_idx: Annotated[int, Range(-1_000_000, 1_000_000)] = -1,
        layer_drop_rate: Annotated[float, Range(0, below=1)] = 0.0,
        max_pos_emb_len: Annotated[int, Range(1, 10_000_000)] = 5000,
        use_ffn: bool = False,
        macaron_ffn: bool = False,
        ffn_activation_type: Literal["hardtanh", "tanh", "relu", "selu", "swish", "gelu"] = "swish",
        linear_units: Annotated[int, Range(1, 1_000_000)] = 2048,
        positionwise_layer_type: Literal["linear"] | None = "linear",
        merge_conv_kernel: Annotated[int, Range(1, 10_000)] = 3,
        interctc_layer_idx: Annotated[Sequence[int] | None, Range(1, 1_000)] = None,
        interctc_use_conditioning: bool = False,
        qk_norm: bool = False,
        use_flash_attn: bool = True,
        gradient_checkpoint_layers: Annotated[Sequence[int], Range(0, 1_000)] = (),
    ) -> None:
        attention, position = resolve_position_types(attention_layer_type, pos_enc_layer_type, rel_pos_type)
        embed = build_input_layer(
            input_layer,
            input_size=input_size,
            size=output_size,
            dropout_rate=dropout_rate,
            position=POSITION_CLASSES[position](output_size, positional_dropout_rate, max_pos_emb_len),
            padding_idx=padding_idx,
            is_position_optional=input_size != output_size,
        )
        has_feed_forward = use_ffn and positionwise_layer_type is not None

        def build_feed_forward() -> nn.Module:
            activation = get_activation(ffn_activation_type)
            return PositionwiseFeedForward(output_size, linear_units, dropout_rate, activation)

        blocks = [
            EBranchformerBlock(
                output_size,
                attn=build_self_attention(
                    attention,
                    heads=attention_heads,
                    size=output_size,
                    dropout_rate=attention_dropout_rate,
                    zero_triu=zero_triu,
                    qk_norm=qk_norm,
                ),
                cgmlp=ConvolutionalGatingMLP(
                    output_size,
                    cgmlp_linear_units,
                    cgmlp_conv_kernel,
                    dropout_rate,
                    use_linear_after_conv=use_linear_after_conv,
                    gate_activation=gate_activation,
                ),
                feed_forward=build_feed_forward() if has_feed_forward else None,
                feed_forward_macaron=build_feed_forward() if has_feed_forward and macaron_ffn else None,
                dropout_rate=dropout_rate,
                merge_conv_kernel=merge_conv_kernel,
            )
            for _ in range(num_blocks)
        ]
        super().__init__(
            embed,
            blocks,
            LayerNorm(output_size),
            output_size=output_size,
            layer_drop_rate=layer_drop_rate,
            interctc_layer_idx=interctc_layer_idx,
            interctc_use_conditioning=interctc_use_conditioning,
            normalizes_intermediate=False,
            checkpointed_layers=gradient_checkpoint_layers,
        )


class EBranchformerBlock(nn.Module):
    """Attention and gating MLP in parallel, merged by a depthwise convolution, between two feed-forward layers."""

    def __init__(
        self,
        size: int,
        *,
        attn: nn.Module,
        cgmlp: nn.Module,
        feed_forward: nn.Module | None,
        feed_forward_macaron: nn.Module | None,
        dropout_rate: float,
        merge_conv_kernel: int,
    ) -> None:
        super().__init__()
        self.attn = attn
        self.cgmlp = cgmlp
        self.feed_forward = feed_forward
        self.feed_forward_macaron = feed_forward_macaron
        self.norm_ff = None if feed_forward is None else LayerNorm(size)
        self.norm_ff_macaron = None if feed_forward_macaron is None else LayerNorm(size)
        self.norm_mha = LayerNorm(size)
        self.norm_mlp = LayerNorm(size)
        self.norm_final = LayerNorm(size)
        self.depthwise_conv_fusion = DepthwiseConv1d(2 * size, merge_conv_kernel)
        self.merge_proj = nn.Linear(2 * size, size)
        self.dropout = Dropout(dropout_rate)

    def forward(self, x: Tensor, mask: Tensor, context: SelfAttentionContext) -> Tensor:
        """x (batch, time, size), mask (batch, time)."""
        factor = 1.0 if self.feed_forward_macaron is None else 0.5
        if self.feed_forward_macaron is not None and self.norm_ff_macaron is not None:
            x = x.add(self.dropout(self.feed_forward_macaron(self.norm_ff_macaron(x))), alpha=factor)
        by_attention = self.dropout(self.attn(self.norm_mha(x), context))
        by_gating = self.dropout(self.cgmlp(self.norm_mlp(x), mask))
        both = torch.cat([by_attention, by_gating], dim=-1)
        merged = both + self.depthwise_conv_fusion(both * mask.unsqueeze(-1))
        x = x + self.dropout(self.merge_proj(merged))
        if self.feed_forward is not None and self.norm_ff is not None:
            x = x.add(self.dropout(self.feed_forward(self.norm_ff(x))), alpha=factor)
        out: Tensor = self.norm_final(x)
        return out
