"""The Transformer encoder for recordings of several speakers (Chang et al. 2020): one output for each of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from tympan.config.range import Range
from tympan.models.encoder.output import EncoderOutput
from tympan.models.encoder.transformer import transformer_blocks
from tympan.nn.attention import SelfAttentionContext
from tympan.nn.checkpointing import call_layer
from tympan.nn.input_layer import build_input_layer
from tympan.nn.layer_norm import LayerNorm
from tympan.nn.masks import key_bias, length_mask
from tympan.nn.position import PositionalEncoding, Positioned


class MultiSpeakerTransformerEncoder(nn.Module):
    """`encoder: transformer_multispkr`. `num_blocks_sd` blocks of each speaker, then `num_blocks` for all speakers.

    The output has `num_inf` rows for each utterance, one after the other.
    """

    def __init__(
        self,
        *,
        input_size: int,
        output_size: Annotated[int, Range(1, 1_000_000)] = 256,
        attention_heads: Annotated[int, Range(1, 10_000)] = 4,
        linear_units: Annotated[int, Range(1, 1_000_000)] = 2048,
        num_blocks: Annotated[int, Range(1, 1_000)] = 6,
        num_blocks_sd: Annotated[int, Range(0, 1_000)] = 6,
        dropout_rate: Annotated[float, Range(0, below=1)] = 0.1,
        positional_dropout_rate: Annotated[float, Range(0, below=1)] = 0.1,
        attention_dropout_rate: Annotated[float, Range(0, below=1)] = 0.0,
        input_layer: Literal["conv2d", "conv2d1", "conv2d2", "conv2d6", "conv2d8", "linear", "embed"] | None = "conv2d",
        normalize_before: bool = True,
        concat_after: bool = False,
        positionwise_layer_type: Literal["linear", "conv1d", "conv1d-linear"] = "linear",
        positionwise_conv_kernel_size: Annotated[int, Range(1, 10_000)] = 1,
        padding_idx: Annotated[int, Range(-1_000_000, 1_000_000)] = -1,
        num_inf: Annotated[int, Range(1, 4)] = 1,
    ) -> None:
        super().__init__()
        self.output_size = output_size
        self.num_inf = num_inf
        self.grad_checkpointing = False
        self.embed = build_input_layer(
            input_layer,
            input_size=input_size,
            size=output_size,
            dropout_rate=dropout_rate,
            position=PositionalEncoding(output_size, positional_dropout_rate),
            padding_idx=padding_idx,
            is_linear_rectified=True,
        )

        def blocks(number: int) -> nn.ModuleList:
            return nn.ModuleList(
                transformer_blocks(
                    number,
                    size=output_size,
                    heads=attention_heads,
                    hidden_size=linear_units,
                    dropout_rate=dropout_rate,
                    attention_dropout_rate=attention_dropout_rate,
                    normalize_before=normalize_before,
                    concat_after=concat_after,
                    positionwise=positionwise_layer_type,
                    kernel_size=positionwise_conv_kernel_size,
                )
            )

        self.encoders = blocks(num_blocks)
        self.after_norm = LayerNorm(output_size) if normalize_before else None
        self.encoders_sd = nn.ModuleList(blocks(num_blocks_sd) for _ in range(num_inf))

    def forward(self, features: Tensor, lengths: Tensor) -> EncoderOutput:
        """features (batch, time, input size) -> (batch * num_inf, frames, size), the speakers of an utterance together.

        All of them have as many frames as the utterance.
        """
        positioned: Positioned = self._call(self.embed, features)
        lengths = self.output_lengths(lengths)
        separated = [self._run(blocks.children(), positioned.x, lengths) for blocks in self.encoders_sd]
        x = torch.stack(separated, dim=1).flatten(0, 1)
        lengths = lengths.repeat_interleave(self.num_inf)
        x = self._run(self.encoders, x, lengths)
        if self.after_norm is not None:
            x = self.after_norm(x)
        return EncoderOutput(x, lengths)

    def output_lengths(self, lengths: Tensor) -> Tensor:
        """Number of output frames for a number of input frames."""
        return self.embed.output_lengths(lengths)

    def set_grad_checkpointing(self, is_on: bool) -> None:
        """Recompute activations of the blocks in the backward pass, to save memory."""
        self.grad_checkpointing = is_on

    def _run(self, blocks: Iterable[nn.Module], x: Tensor, lengths: Tensor) -> Tensor:
        mask = length_mask(lengths, x.size(1))
        context = SelfAttentionContext(key_bias(mask, x.dtype), lengths=lengths)
        for block in blocks:
            x = self._call(block, x, mask, context)
        return x

    def _call(self, layer: nn.Module, *args: object) -> Any:
        return call_layer(layer, *args, is_checkpointed=self.training and self.grad_checkpointing)
