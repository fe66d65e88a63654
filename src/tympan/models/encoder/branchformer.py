"""The Branchformer encoder (Peng et al. 2022), with ESPnet2's options and parameter names."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from tympan.config.range import Range
from tympan.errors import UserError
from tympan.models.encoder.blocks import (
    BlockEncoder,
    build_self_attention,
    draw_stochastic_depth,
    per_layer,
    resolve_position_types,
)
from tympan.nn.attention import SelfAttentionContext
from tympan.nn.cgmlp import ConvolutionalGatingMLP
from tympan.nn.dropout import Dropout
from tympan.nn.input_layer import build_input_layer
from tympan.nn.layer_norm import LayerNorm
from tympan.nn.position import POSITION_CLASSES


class BranchformerEncoder(BlockEncoder):
    """`encoder: branchformer`.

    `use_flash_attn` is accepted but has no effect: torch's fused attention is used whenever possible.
    """

    def __init__(
        self,
        *,
        input_size: int,
        output_size: Annotated[int, Range(1, 1_000_000)] = 256,
        use_attn: bool = True,
        attention_heads: Annotated[int, Range(1, 10_000)] = 4,
        attention_layer_type: Literal[
            "selfattn", "rel_selfattn", "legacy_rel_selfattn", "fast_selfattn"
        ] = "rel_selfattn",
        pos_enc_layer_type: Literal["abs_pos", "scaled_abs_pos", "rel_pos", "legacy_rel_pos"] = "rel_pos",
        rel_pos_type: Literal["legacy", "latest"] = "latest",
        use_cgmlp: bool = True,
        cgmlp_linear_units: Annotated[int, Range(1, 1_000_000)] = 2048,
        cgmlp_conv_kernel: Annotated[int, Range(1, 10_000)] = 31,
        use_linear_after_conv: bool = False,
        gate_activation: Literal["identity", "hardtanh", "tanh", "relu", "selu", "swish", "gelu"] = "identity",
        merge_method: Literal["concat", "learned_ave", "fixed_ave"] = "concat",
        cgmlp_weight: Annotated[float | list[float], Range(0, 1)] = 0.5,
        attn_branch_drop_rate: Annotated[float | list[float], Range(0, below=1)] = 0.0,
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
        stochastic_depth_rate: Annotated[float | list[float], Range(0, below=1)] = 0.0,
        qk_norm: bool = False,
        use_flash_attn: bool = True,
    ) -> None:
        if not (use_attn or use_cgmlp):
            raise UserError("encoder_conf use_attn and use_cgmlp are both false; set at least one of them to true")
        attention, position = resolve_position_types(attention_layer_type, pos_enc_layer_type, rel_pos_type)
        if input_layer is None and use_attn and attention.endswith("rel_selfattn"):
            raise UserError(
                f"encoder_conf input_layer null adds no positions, which attention_layer_type {attention_layer_type} "
                "needs: use input_layer linear, or selfattn with pos_enc_layer_type abs_pos"
            )
        embed = build_input_layer(
            input_layer,
            input_size=input_size,
            size=output_size,
            dropout_rate=dropout_rate,
            position=POSITION_CLASSES[position](output_size, positional_dropout_rate),
            padding_idx=padding_idx,
            is_position_optional=True,
        )
        mlp_weights = per_layer(cgmlp_weight, num_blocks, "cgmlp_weight")
        drop_rates = per_layer(attn_branch_drop_rate, num_blocks, "attn_branch_drop_rate")
        depth_rates = per_layer(stochastic_depth_rate, num_blocks, "stochastic_depth_rate")
        blocks = []
        for mlp_weight, drop_rate, depth_rate in zip(mlp_weights, drop_rates, depth_rates, strict=True):
            # An average with all the weight on one side has only one branch.
            is_fixed = merge_method == "fixed_ave" and use_attn and use_cgmlp
            attn = build_self_attention(
                attention,
                heads=attention_heads,
                size=output_size,
                dropout_rate=attention_dropout_rate,
                zero_triu=zero_triu,
                qk_norm=qk_norm,
            )
            cgmlp = ConvolutionalGatingMLP(
                output_size,
                cgmlp_linear_units,
                cgmlp_conv_kernel,
                dropout_rate,
                use_linear_after_conv=use_linear_after_conv,
                gate_activation=gate_activation,
            )
            block = BranchformerBlock(
                output_size,
                attn=attn if use_attn and not (is_fixed and mlp_weight == 1.0) else None,
                cgmlp=cgmlp if use_cgmlp and not (is_fixed and mlp_weight == 0.0) else None,
                is_projected=use_attn and use_cgmlp,
                dropout_rate=dropout_rate,
                merge_method=merge_method,
                cgmlp_weight=mlp_weight,
                attn_branch_drop_rate=drop_rate,
                stochastic_depth_rate=depth_rate,
            )
            blocks.append(block)
        super().__init__(embed, blocks, LayerNorm(output_size), output_size=output_size)


class BranchformerBlock(nn.Module):
    """Attention and gating MLP in parallel, merged by concatenation or by a (learned) average."""

    def __init__(
        self,
        size: int,
        *,
        attn: nn.Module | None,
        cgmlp: nn.Module | None,
        is_projected: bool,
        dropout_rate: float,
        merge_method: Literal["concat", "learned_ave", "fixed_ave"],
        cgmlp_weight: float,
        attn_branch_drop_rate: float,
        stochastic_depth_rate: float,
    ) -> None:
        super().__init__()
        if not 0.0 <= cgmlp_weight <= 1.0:
            raise UserError(f"encoder_conf cgmlp_weight must be between 0 and 1, but it is {cgmlp_weight}")
        self.size = size
        self.attn = attn
        self.cgmlp = cgmlp
        self.norm_mha = None if attn is None else LayerNorm(size)
        self.norm_mlp = None if cgmlp is None else LayerNorm(size)
        self.norm_final = LayerNorm(size)
        self.merge_method = merge_method
        self.cgmlp_weight = cgmlp_weight
        self.attn_branch_drop_rate = attn_branch_drop_rate
        self.stochastic_depth_rate = stochastic_depth_rate
        self.dropout = Dropout(dropout_rate)
        self.merge_proj: nn.Module = nn.Identity()
        if is_projected:
            self.merge_proj = nn.Linear(2 * size if merge_method == "concat" else size, size)
            if merge_method == "learned_ave":
                self.pooling_proj1 = nn.Linear(size, 1)
                self.pooling_proj2 = nn.Linear(size, 1)
                self.weight_proj1 = nn.Linear(size, 1)
                self.weight_proj2 = nn.Linear(size, 1)

    def forward(self, x: Tensor, mask: Tensor, context: SelfAttentionContext) -> Tensor:
        """x (batch, time, size), mask (batch, time)."""
        factor = draw_stochastic_depth(self.stochastic_depth_rate, is_training=self.training)
        if factor is None:
            return x
        branches = []
        if self.attn is not None and self.norm_mha is not None:
            branches.append(self.dropout(self.attn(self.norm_mha(x), context)))
        if self.cgmlp is not None and self.norm_mlp is not None:
            branches.append(self.dropout(self.cgmlp(self.norm_mlp(x), mask)))
        merged = branches[0] if len(branches) == 1 else self._merge(branches[0], branches[1], context)
        out: Tensor = self.norm_final(x.add(self.dropout(self.merge_proj(merged)), alpha=factor))
        return out

    def _merge(self, by_attention: Tensor, by_gating: Tensor, context: SelfAttentionContext) -> Tensor:
        if self.merge_method == "concat":
            return torch.cat([by_attention, by_gating], dim=-1)
        if self.merge_method == "fixed_ave":
            return (1.0 - self.cgmlp_weight) * by_attention + self.cgmlp_weight * by_gating
        if self.training and torch.rand(()).item() < self.attn_branch_drop_rate:
            return by_gating
        weights = torch.cat(
            [
                self.weight_proj1(self._pool(by_attention, self.pooling_proj1, context)),
                self.weight_proj2(self._pool(by_gating, self.pooling_proj2, context)),
            ],
            dim=-1,
        ).softmax(-1)  # (batch, 2)
        return weights[:, 0, None, None] * by_attention + weights[:, 1, None, None] * by_gating

    def _pool(self, x: Tensor, scorer: nn.Module, context: SelfAttentionContext) -> Tensor:
        """(batch, size): the mean over time, weighted by the score of each frame."""
        scores = scorer(x).transpose(1, 2) / math.sqrt(self.size) + context.bias.squeeze(1)
        return torch.matmul(scores.softmax(-1), x).squeeze(1)
