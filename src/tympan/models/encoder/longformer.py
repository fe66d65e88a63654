"""`encoder: longformer`: a Conformer whose attention sees a window, with ESPnet2's options and parameter names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from tympan.config.range import Range
from tympan.errors import UserError
from tympan.models.encoder.conformer import ConformerEncoder
from tympan.nn.local_attention import LongformerAttention


class LongformerEncoder(ConformerEncoder):
    """`attention_windows` and `attention_dilation` have one value per block.

    Every `attention_mode` gives the same result. ESPnet2 needs the package `longformer`, and a CUDA kernel for a
    dilation. Differs from it: convolutions see zeros after the end of an utterance, not frames of padding.
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
        input_layer: Literal["conv2d", "conv2d1", "conv2d2", "conv2d6", "conv2d8", "linear", "embed"] | None = "conv2d",
        normalize_before: bool = True,
        concat_after: bool = False,
        positionwise_layer_type: Literal["linear", "conv1d", "conv1d-linear"] = "linear",
        positionwise_conv_kernel_size: Annotated[int, Range(1, 10_000)] = 3,
        macaron_style: bool = False,
        rel_pos_type: Literal["legacy", "latest"] = "legacy",
        pos_enc_layer_type: Literal["abs_pos"] = "abs_pos",
        selfattention_layer_type: Literal["lf_selfattn"] = "lf_selfattn",
        activation_type: Literal["hardtanh", "tanh", "relu", "selu", "swish", "gelu"] = "swish",
        use_cnn_module: bool = True,
        zero_triu: bool = False,
        cnn_module_kernel: Annotated[int, Range(1, 10_000)] = 31,
        padding_idx: Annotated[int, Range(-1_000_000, 1_000_000)] = -1,
        interctc_layer_idx: Annotated[Sequence[int], Range(1, 1_000)] = (),
        interctc_use_conditioning: bool = False,
        attention_windows: Annotated[Sequence[int], Range(1, 1_000_000)] = (100, 100, 100, 100, 100, 100),
        attention_dilation: Annotated[Sequence[int], Range(1, 1_000)] = (1, 1, 1, 1, 1, 1),
        attention_mode: Literal["tvm", "sliding_chunks", "sliding_chunks_no_overlap"] = "sliding_chunks",
    ) -> None:
        for name, values in (("attention_windows", attention_windows), ("attention_dilation", attention_dilation)):
            if len(values) != num_blocks:
                raise UserError(
                    f"{name} has {len(values)} values, but num_blocks is {num_blocks}: it needs one value per block"
                )
        super().__init__(
            input_size=input_size,
            output_size=output_size,
            attention_heads=attention_heads,
            linear_units=linear_units,
            num_blocks=num_blocks,
            dropout_rate=dropout_rate,
            positional_dropout_rate=positional_dropout_rate,
            input_layer=input_layer,
            normalize_before=normalize_before,
            concat_after=concat_after,
            positionwise_layer_type=positionwise_layer_type,
            positionwise_conv_kernel_size=positionwise_conv_kernel_size,
            macaron_style=macaron_style,
            pos_enc_layer_type="abs_pos",
            selfattention_layer_type="selfattn",
            activation_type=activation_type,
            use_cnn_module=use_cnn_module,
            cnn_module_kernel=cnn_module_kernel,
            padding_idx=padding_idx,
            interctc_layer_idx=interctc_layer_idx,
            interctc_use_conditioning=interctc_use_conditioning,
        )
        self.reach = None  # windows would cross the borders of concatenated utterances
        for block, window, dilation in zip(self.encoders, attention_windows, attention_dilation, strict=True):
            # ESPnet2 uses dropout_rate here, not attention_dropout_rate
            block.self_attn = LongformerAttention(
                attention_heads, output_size, dropout_rate, window=window, dilation=dilation
            )
