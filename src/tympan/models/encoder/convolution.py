"""Transformer encoders with lightweight or dynamic convolution instead of self-attention, as ESPnet1 has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from tympan.config.range import Range
from tympan.errors import UserError
from tympan.models.encoder.blocks import BlockEncoder
from tympan.models.encoder.transformer import TransformerBlock
from tympan.nn.activation import get_activation
from tympan.nn.feed_forward import build_positionwise
from tympan.nn.input_layer import build_input_layer
from tympan.nn.layer_norm import LayerNorm
from tympan.nn.light_convolution import DynamicConvolution, LightweightConvolution
from tympan.nn.position import PositionalEncoding


class ConvolutionEncoder(BlockEncoder):
    """Base class of the four encoders; subclasses choose the convolution."""

    convolution: type[LightweightConvolution] | type[DynamicConvolution]
    is_2d = False

    def __init__(
        self,
        *,
        input_size: int,
        output_size: Annotated[int, Range(1, 1_000_000)] = 256,
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
        padding_idx: Annotated[int, Range(-1_000_000, 1_000_000)] = -1,
        interctc_layer_idx: Annotated[Sequence[int], Range(1, 1_000)] = (),
        interctc_use_conditioning: bool = False,
        conv_wshare: Annotated[int, Range(1, 10_000)] = 4,
        conv_kernel_length: Annotated[Sequence[int], Range(1, 10_000)] = (11, 11, 11, 11, 11, 11),
        conv_usebias: bool = False,
    ) -> None:
        if len(conv_kernel_length) != num_blocks:
            raise UserError(
                f"conv_kernel_length has {len(conv_kernel_length)} values, but num_blocks is "
                f"{num_blocks}: it needs one value per block"
            )
        embed = build_input_layer(
            input_layer,
            input_size=input_size,
            size=output_size,
            dropout_rate=dropout_rate,
            position=PositionalEncoding(output_size, positional_dropout_rate),
            padding_idx=padding_idx,
            is_linear_rectified=True,
            is_position_optional=True,
        )
        blocks = [
            TransformerBlock(
                output_size,
                self_attn=self.convolution(
                    output_size,
                    groups=conv_wshare,
                    kernel_size=kernel_size,
                    dropout_rate=attention_dropout_rate,
                    is_causal=False,
                    has_bias=conv_usebias,
                    is_2d=self.is_2d,
                ),
                feed_forward=build_positionwise(
                    "linear",
                    size=output_size,
                    hidden_size=linear_units,
                    kernel_size=1,
                    dropout_rate=dropout_rate,
                    activation=get_activation("relu"),
                ),
                dropout_rate=dropout_rate,
                normalize_before=normalize_before,
                concat_after=concat_after,
            )
            for kernel_size in conv_kernel_length
        ]
        super().__init__(
            embed,
            blocks,
            LayerNorm(output_size) if normalize_before else None,
            output_size=output_size,
            interctc_layer_idx=interctc_layer_idx,
            interctc_use_conditioning=interctc_use_conditioning,
        )


class LightweightConvEncoder(ConvolutionEncoder):
    """`encoder: lightweight_conv`, ESPnet1's `lightconv`."""

    convolution = LightweightConvolution


class LightweightConv2dEncoder(ConvolutionEncoder):
    """`encoder: lightweight_conv2d`, ESPnet1's `lightconv2d`."""

    convolution = LightweightConvolution
    is_2d = True


class DynamicConvEncoder(ConvolutionEncoder):
    """`encoder: dynamic_conv`, ESPnet1's `dynamicconv`."""

    convolution = DynamicConvolution


class DynamicConv2dEncoder(ConvolutionEncoder):
    """`encoder: dynamic_conv2d`, ESPnet1's `dynamicconv2d`."""

    convolution = DynamicConvolution
    is_2d = True
