"""The MultiConvformer encoder (Prabhu et al. 2024), with ESPnet2's options and parameter names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from tympan.config.range import Range
from tympan.errors import UserError
from tympan.models.encoder.blocks import BlockEncoder, build_self_attention, per_layer, resolve_position_types
from tympan.models.encoder.conformer import ConformerBlock
from tympan.nn.activation import get_activation
from tympan.nn.dropout import Dropout
from tympan.nn.feed_forward import build_positionwise
from tympan.nn.input_layer import build_input_layer
from tympan.nn.layer_norm import LayerNorm
from tympan.nn.position import POSITION_CLASSES

Merge = Literal["sum", "weighted_sum", "concat", "concat_fusion"]


class MultiConvConformerEncoder(BlockEncoder):
    """`encoder: multiconv_conformer`: a Conformer whose convolution is a gate of several kernel sizes."""

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
        cgmlp_linear_units: Annotated[int, Range(1, 1_000_000)] = 2048,
        multicgmlp_type: Literal["sum", "weighted_sum", "concat", "concat_fusion"] = "concat_fusion",
        multicgmlp_kernel_sizes: Annotated[int | str, Range(1, 10_000)] = "7,15,23,31",
        multicgmlp_merge_conv_kernel: Annotated[int, Range(1, 10_000)] = 31,
        multicgmlp_use_non_linear: bool = True,
        use_linear_after_conv: bool = False,
        gate_activation: Literal["identity", "hardtanh", "tanh", "relu", "selu", "swish", "gelu"] = "identity",
        input_layer: Literal["conv2d", "conv2d1", "conv2d2", "conv2d6", "conv2d8", "linear", "embed"] | None = "conv2d",
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
        padding_idx: Annotated[int, Range(-1_000_000, 1_000_000)] = -1,
        interctc_layer_idx: Annotated[Sequence[int], Range(1, 1_000)] = (),
        interctc_use_conditioning: bool = False,
        stochastic_depth_rate: Annotated[float | list[float], Range(0, below=1)] = 0.0,
        layer_drop_rate: Annotated[float, Range(0, below=1)] = 0.0,
        max_pos_emb_len: Annotated[int, Range(1, 10_000_000)] = 5000,
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
        kernels = [int(size) for size in str(multicgmlp_kernel_sizes).split(",")]

        def build_feed_forward() -> nn.Module:
            return build_positionwise(
                positionwise_layer_type,
                size=output_size,
                hidden_size=linear_units,
                kernel_size=positionwise_conv_kernel_size,
                dropout_rate=dropout_rate,
                activation=get_activation(activation_type),
            )

        def build_gate() -> nn.Module:
            return MultiConvolutionalGatingMLP(
                output_size,
                cgmlp_linear_units,
                merge=multicgmlp_type,
                kernels=kernels,
                merge_kernel=multicgmlp_merge_conv_kernel,
                activation=get_activation(activation_type) if multicgmlp_use_non_linear else nn.Identity(),
                dropout_rate=dropout_rate,
                use_linear_after_conv=use_linear_after_conv,
                gate_activation=gate_activation,
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
                ),
                feed_forward=build_feed_forward(),
                feed_forward_macaron=build_feed_forward() if macaron_style else None,
                conv_module=build_gate() if use_cnn_module else None,
                dropout_rate=dropout_rate,
                normalize_before=normalize_before,
                concat_after=concat_after,
                stochastic_depth_rate=rate,
            )
            for rate in per_layer(stochastic_depth_rate, num_blocks, "stochastic_depth_rate")
        ]
        super().__init__(
            embed,
            blocks,
            LayerNorm(output_size) if normalize_before else None,
            output_size=output_size,
            layer_drop_rate=layer_drop_rate,
            interctc_layer_idx=interctc_layer_idx,
            interctc_use_conditioning=interctc_use_conditioning,
        )


class MultiConvolutionalGatingMLP(nn.Module):
    """Projection, GELU, gating by several convolutions of half of the channels, projection."""

    def __init__(
        self,
        size: int,
        linear_units: int,
        *,
        merge: Merge,
        kernels: Sequence[int],
        merge_kernel: int,
        activation: nn.Module,
        dropout_rate: float,
        use_linear_after_conv: bool,
        gate_activation: str,
    ) -> None:
        super().__init__()
        self.channel_proj1 = nn.Sequential(nn.Linear(size, linear_units), nn.GELU())
        self.csgu = MultiConvolutionalSpatialGatingUnit(
            linear_units // 2,
            merge=merge,
            kernels=kernels,
            merge_kernel=merge_kernel,
            activation=activation,
            dropout_rate=dropout_rate,
            use_linear_after_conv=use_linear_after_conv,
            gate_activation=gate_activation,
        )
        self.channel_proj2 = nn.Linear(linear_units // 2, size)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """x (batch, time, size), mask (batch, time)."""
        out: Tensor = self.channel_proj2(self.csgu(self.channel_proj1(x), mask))
        return out


class MultiConvolutionalSpatialGatingUnit(nn.Module):
    """One half of the channels, multiplied by the other half after convolutions over time.

    `sum` and `weighted_sum` add them; `concat` and `concat_fusion` give each a share of the channels. Padding is zeroed
    before every convolution, so that the last frames do not depend on it; in ESPnet2 they do.
    """

    def __init__(
        self,
        channels: int,
        *,
        merge: Merge,
        kernels: Sequence[int],
        merge_kernel: int,
        activation: nn.Module,
        dropout_rate: float,
        use_linear_after_conv: bool,
        gate_activation: str,
    ) -> None:
        super().__init__()
        _check_kernels(channels, kernels)
        self.merge = merge
        self.norm = LayerNorm(channels)
        groups = channels if merge in ("sum", "weighted_sum") else channels // len(kernels)
        self.convs = nn.ModuleList(
            nn.Conv1d(channels, groups, kernel, padding=kernel // 2, groups=groups) for kernel in kernels
        )
        self.kernel_prob_gen = None
        if merge == "weighted_sum":
            weights = nn.Linear(channels * len(kernels), len(kernels))
            self.kernel_prob_gen = nn.Sequential(weights, nn.Softmax(dim=-1))
        self.depthwise_conv_fusion = None
        if merge == "concat_fusion":
            _check_kernels(channels, [merge_kernel])
            self.depthwise_conv_fusion = nn.Conv1d(
                channels, channels, merge_kernel, padding=merge_kernel // 2, groups=channels
            )
        self.linear = nn.Linear(channels, channels) if use_linear_after_conv else None
        self.model_act = activation
        self.act = get_activation(gate_activation)
        self.dropout = Dropout(dropout_rate)

    def reset_own_parameters(self) -> None:
        """Initialize the gates near 1, independent of the model's initialization."""
        for layer in (*self.convs, self.depthwise_conv_fusion, self.linear):
            if isinstance(layer, nn.Conv1d | nn.Linear):
                nn.init.normal_(layer.weight, std=1e-6)
                assert layer.bias is not None
                nn.init.ones_(layer.bias)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        value, gate = x.chunk(2, dim=-1)
        gate = self._convolved(self.norm(gate), mask.unsqueeze(-1))
        if self.linear is not None:
            gate = self.linear(gate)
        out: Tensor = self.dropout(value * self.act(gate))
        return out

    def _convolved(self, gate: Tensor, mask: Tensor) -> Tensor:
        parts = [_over_time(conv, gate * mask) for conv in self.convs]
        if self.merge == "sum":
            return torch.stack([self.model_act(part) for part in parts]).sum(0)
        joined = torch.cat(parts, dim=-1)
        if self.kernel_prob_gen is not None:
            weights: Tensor = self.kernel_prob_gen(joined)  # (batch, time, kernels)
            return (weights.unsqueeze(-1) * torch.stack(parts, dim=-2)).sum(-2)
        if self.depthwise_conv_fusion is not None:
            joined = joined + _over_time(self.depthwise_conv_fusion, joined * mask)
        return joined


def _over_time(conv: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = conv(x.transpose(1, 2))
    return out.transpose(1, 2)


def _check_kernels(channels: int, kernels: Sequence[int]) -> None:
    even = [kernel for kernel in kernels if kernel % 2 == 0]
    if even:
        raise UserError(f"encoder_conf multicgmlp_kernel_sizes must contain only odd numbers, found {even[0]}")
    if channels % len(kernels):
        raise UserError(
            f"encoder_conf multicgmlp_kernel_sizes: {channels} channels (half of cgmlp_linear_units) can't be divided "
            f"between {len(kernels)} kernels"
        )
