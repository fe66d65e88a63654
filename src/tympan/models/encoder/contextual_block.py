"""Contextual block encoders (Tsunoo et al. 2019), which see a limited number of future frames, with ESPnet2's options.

The frames are cut into overlapping blocks. Every block also has two context vectors: it reads the one that the block
before it wrote in the layer below, and writes its own. An utterance that fits into one block is encoded as a whole.

Shapes: B utterances, T frames, K blocks, W = block_size + 2 positions of a block: the context read, the frames, the
context written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from tympan.config.range import Range
from tympan.errors import UserError
from tympan.models.encoder.block_stream import BlockStream, advance_blocks, start_blocks
from tympan.models.encoder.frame_blocks import Blocks
from tympan.models.encoder.output import EncoderOutput
from tympan.nn.activation import get_activation
from tympan.nn.attention import MultiHeadedAttention
from tympan.nn.checkpointing import call_layer
from tympan.nn.convolution import ConvolutionModule
from tympan.nn.dropout import Dropout
from tympan.nn.feed_forward import build_positionwise
from tympan.nn.input_layer import InputLayer, build_input_layer
from tympan.nn.layer_norm import LayerNorm
from tympan.nn.masks import key_bias
from tympan.nn.position import NoPosition, PositionalEncoding


class ContextualBlockEncoder(nn.Module):
    """Common to both encoders: input layer, blocks with context vectors, normalization."""

    def __init__(
        self,
        embed: InputLayer,
        layers: list[ContextualBlockLayer],
        *,
        output_size: int,
        positional_dropout_rate: float,
        normalize_before: bool,
        block_size: int,
        hop_size: int,
        look_ahead: int,
        init_average: bool,
        ctx_pos_enc: bool,
    ) -> None:
        super().__init__()
        if block_size and hop_size + look_ahead > block_size:
            raise UserError(
                f"encoder_conf hop_size {hop_size} and look_ahead {look_ahead} together must not exceed block_size "
                f"{block_size}"
            )
        self.output_size = output_size
        self.pos_enc = PositionalEncoding(output_size, positional_dropout_rate)
        self.embed = embed
        self.encoders = nn.ModuleList(layers)
        self.after_norm = LayerNorm(output_size) if normalize_before else None
        self.block_size = block_size
        self.hop_size = hop_size
        self.look_ahead = look_ahead
        self.init_average = init_average
        self.ctx_pos_enc = ctx_pos_enc
        self.grad_checkpointing = False

    def forward(self, features: Tensor, lengths: Tensor) -> EncoderOutput:
        """features (batch, time, input size), or tokens (batch, time) for `input_layer: embed`; zero beyond lengths."""
        lengths = self.output_lengths(lengths)
        return EncoderOutput(self.encode_frames(self.embed(features).x, lengths), lengths, ())

    def encode_frames(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Encode the output of the input layer, x (B, T, size of a frame)."""
        frames = x.size(1)
        size = self.block_size if 0 < self.block_size < frames else frames
        blocks = Blocks(size, self.hop_size, self.look_ahead, lengths, frames)
        out, _ = self.encode_blocks(blocks.cut(self.pos_enc(x).x), self.first_contexts(x, blocks), *blocks.masks())
        return self.normalized(blocks.joined(out))

    def encode_blocks(
        self, x: Tensor, contexts: Tensor, keys: Tensor, exists: Tensor, before: Sequence[Tensor] | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """Encode consecutive blocks: x (B, K, W - 2, size of a frame), contexts (B, K, size of a frame).

        Also returns the contexts of the last block, as inputs of every layer: `before` of the blocks that follow.
        """
        bias, exists = key_bias(keys.flatten(0, 1), x.dtype), exists.flatten(0, 1)
        written = [contexts[:, -1]]
        x = torch.cat([_read(contexts, before, 0), x, contexts.unsqueeze(2)], dim=2)
        for number, layer in enumerate(self.encoders):
            if number > 0:
                written.append(x[:, -1, -1])
                x = torch.cat([_read(x[:, :, -1], before, number), x[:, :, 1:]], dim=2)
            is_checkpointed = self.training and self.grad_checkpointing
            flat = call_layer(layer, x.flatten(0, 1), bias, exists, is_checkpointed=is_checkpointed)
            x = flat.view(x.shape)
        return x, written

    def normalized(self, out: Tensor) -> Tensor:
        """The normalization after the last layer, if there is one."""
        normalized: Tensor = out if self.after_norm is None else self.after_norm(out)
        return normalized

    def first_contexts(self, x: Tensor, blocks: Blocks, first_block: int = 0) -> Tensor:
        """(B, K, size of a frame): mean or maximum of the frames of every block."""
        cut, is_frame = blocks.cut(x), blocks.is_frame().unsqueeze(3)
        if self.init_average:
            contexts = cut.sum(2) / is_frame.sum(2).clamp(min=1)
        else:
            contexts = cut.masked_fill(~is_frame, torch.finfo(cut.dtype).min).amax(2) * is_frame.any(2)
        return self.pos_enc(contexts, first_block).x if self.ctx_pos_enc else contexts

    def start_stream(self) -> BlockStream:
        """The state before the first frame. UserError for options that need the whole utterance."""
        return start_blocks(self)

    def encode_chunk(self, features: Tensor, state: BlockStream, /, *, is_last: bool) -> tuple[Tensor, BlockStream]:
        """The next features (1, time, input size) of an utterance -> the output frames that are final by now."""
        return advance_blocks(self, features, state, is_last=is_last)

    def output_lengths(self, lengths: Tensor) -> Tensor:
        """Number of output frames for a number of input frames."""
        return self.embed.output_lengths(lengths)

    def set_grad_checkpointing(self, is_on: bool) -> None:
        """Recompute activations of the blocks in the backward pass, to save memory."""
        self.grad_checkpointing = is_on


class ContextualBlockTransformerEncoder(ContextualBlockEncoder):
    """`encoder: contextual_block_transformer`."""

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
        input_layer: Literal["conv2d", "conv2d6", "conv2d8", "linear", "embed"] | None = "conv2d",
        normalize_before: bool = True,
        concat_after: bool = False,
        positionwise_layer_type: Literal["linear", "conv1d", "conv1d-linear"] = "linear",
        positionwise_conv_kernel_size: Annotated[int, Range(1, 10_000)] = 1,
        padding_idx: Annotated[int, Range(-1_000_000, 1_000_000)] = -1,
        block_size: Annotated[int, Range(0, 1_000_000)] = 40,
        hop_size: Annotated[int, Range(1, 1_000_000)] = 16,
        look_ahead: Annotated[int, Range(0, 1_000_000)] = 16,
        init_average: bool = True,
        ctx_pos_enc: bool = True,
    ) -> None:
        layers = [
            ContextualBlockLayer(
                output_size,
                self_attn=_attention(attention_heads, output_size, attention_dropout_rate),
                feed_forward=build_positionwise(
                    positionwise_layer_type,
                    size=output_size,
                    hidden_size=linear_units,
                    kernel_size=positionwise_conv_kernel_size,
                    dropout_rate=dropout_rate,
                    activation=get_activation("relu"),
                ),
                dropout_rate=dropout_rate,
                normalize_before=normalize_before,
                concat_after=concat_after,
            )
            for _ in range(num_blocks)
        ]
        super().__init__(
            _input_layer(input_layer, input_size, output_size, dropout_rate, positional_dropout_rate, padding_idx),
            layers,
            output_size=output_size,
            positional_dropout_rate=positional_dropout_rate,
            normalize_before=normalize_before,
            block_size=block_size,
            hop_size=hop_size,
            look_ahead=look_ahead,
            init_average=init_average,
            ctx_pos_enc=ctx_pos_enc,
        )


class ContextualBlockConformerEncoder(ContextualBlockEncoder):
    """`encoder: contextual_block_conformer`.

    `selfattention_layer_type` is accepted but has no effect, as in ESPnet2: attention has absolute positions.
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
        input_layer: Literal["conv2d", "conv2d6", "conv2d8", "linear", "embed"] | None = "conv2d",
        normalize_before: bool = True,
        concat_after: bool = False,
        positionwise_layer_type: Literal["linear", "conv1d", "conv1d-linear"] = "linear",
        positionwise_conv_kernel_size: Annotated[int, Range(1, 10_000)] = 3,
        macaron_style: bool = False,
        selfattention_layer_type: str = "rel_selfattn",
        activation_type: Literal["hardtanh", "tanh", "relu", "selu", "swish"] = "swish",
        use_cnn_module: bool = True,
        cnn_module_kernel: Annotated[int, Range(1, 10_000)] = 31,
        padding_idx: Annotated[int, Range(-1_000_000, 1_000_000)] = -1,
        block_size: Annotated[int, Range(0, 1_000_000)] = 40,
        hop_size: Annotated[int, Range(1, 1_000_000)] = 16,
        look_ahead: Annotated[int, Range(0, 1_000_000)] = 16,
        init_average: bool = True,
        ctx_pos_enc: bool = True,
    ) -> None:
        def build_feed_forward() -> nn.Module:
            return build_positionwise(
                positionwise_layer_type,
                size=output_size,
                hidden_size=linear_units,
                kernel_size=positionwise_conv_kernel_size,
                dropout_rate=dropout_rate,
                activation=get_activation("relu"),
            )

        layers = [
            ContextualBlockLayer(
                output_size,
                self_attn=_attention(attention_heads, output_size, attention_dropout_rate),
                feed_forward=build_feed_forward(),
                feed_forward_macaron=build_feed_forward() if macaron_style else None,
                conv_module=ConvolutionModule(output_size, cnn_module_kernel, get_activation(activation_type))
                if use_cnn_module
                else None,
                dropout_rate=dropout_rate,
                normalize_before=normalize_before,
                concat_after=concat_after,
            )
            for _ in range(num_blocks)
        ]
        super().__init__(
            _input_layer(input_layer, input_size, output_size, dropout_rate, positional_dropout_rate, padding_idx),
            layers,
            output_size=output_size,
            positional_dropout_rate=positional_dropout_rate,
            normalize_before=normalize_before,
            block_size=block_size,
            hop_size=hop_size,
            look_ahead=look_ahead,
            init_average=init_average,
            ctx_pos_enc=ctx_pos_enc,
        )


class ContextualBlockLayer(nn.Module):
    """Half a feed-forward (macaron), self-attention, convolution, (half) a feed-forward; each with a residual."""

    def __init__(
        self,
        size: int,
        *,
        self_attn: MultiHeadedAttention,
        feed_forward: nn.Module,
        feed_forward_macaron: nn.Module | None = None,
        conv_module: nn.Module | None = None,
        dropout_rate: float,
        normalize_before: bool,
        concat_after: bool,
    ) -> None:
        super().__init__()
        self.self_attn = self_attn
        self.feed_forward = feed_forward
        self.feed_forward_macaron = feed_forward_macaron
        self.conv_module = conv_module
        self.norm1 = LayerNorm(size)
        self.norm2 = LayerNorm(size)
        self.norm_ff_macaron = None if feed_forward_macaron is None else LayerNorm(size)
        self.norm_conv = None if conv_module is None else LayerNorm(size)
        self.norm_final = None if conv_module is None else LayerNorm(size)
        self.concat_linear = nn.Linear(2 * size, size) if concat_after else None
        self.dropout = Dropout(dropout_rate)
        self.normalize_before = normalize_before

    def forward(self, x: Tensor, bias: Tensor, exists: Tensor) -> Tensor:
        """x (B * K, W, size), bias (B * K, 1, 1, W) of attention, exists (B * K, W) for convolutions."""
        share = 1.0 if self.feed_forward_macaron is None else 0.5
        if self.feed_forward_macaron is not None:
            assert self.norm_ff_macaron is not None
            update = self.feed_forward_macaron(self._before(self.norm_ff_macaron, x), exists)
            x = self._after(self.norm_ff_macaron, x.add(self.dropout(update), alpha=share))
        query = self._before(self.norm1, x)
        x = self._after(self.norm1, x + self._attended(query, bias))
        if self.conv_module is not None:
            assert self.norm_conv is not None
            update = self.conv_module(self._before(self.norm_conv, x), exists)
            x = self._after(self.norm_conv, x + self.dropout(update))
        update = self.feed_forward(self._before(self.norm2, x), exists)
        x = self._after(self.norm2, x.add(self.dropout(update), alpha=share))
        return x if self.norm_final is None else self.norm_final(x)

    def _attended(self, query: Tensor, bias: Tensor) -> Tensor:
        """The context that a block reads attends to nothing."""
        nothing = self.self_attn.linear_out(query.new_zeros(query.size(0), 1, query.size(2)))
        update = torch.cat([nothing, self.self_attn.attend_to_self(query, bias)[:, 1:]], dim=1)
        mixed: Tensor
        if self.concat_linear is None:
            mixed = self.dropout(update)
        else:
            mixed = self.concat_linear(torch.cat([query, update], dim=-1))
        return mixed

    def _before(self, norm: nn.Module, x: Tensor) -> Tensor:
        return norm(x) if self.normalize_before else x

    def _after(self, norm: nn.Module, x: Tensor) -> Tensor:
        return x if self.normalize_before else norm(x)


def _read(contexts: Tensor, before: Sequence[Tensor] | None, layer: int) -> Tensor:
    """(B, K, 1, size): the context that every block reads, which the block before it wrote; the first reads its own."""
    first = contexts[:, :1] if before is None else before[layer].unsqueeze(1)
    return torch.cat([first, contexts[:, :-1]], dim=1).unsqueeze(2)


def _attention(heads: int, size: int, dropout_rate: float) -> MultiHeadedAttention:
    if size % heads:
        raise UserError(f"output_size {size} must be a multiple of attention_heads, which is {heads}")
    return MultiHeadedAttention(heads, size, dropout_rate)


def _input_layer(
    kind: str | None, input_size: int, size: int, dropout_rate: float, positional_dropout_rate: float, padding_idx: int
) -> InputLayer:
    if kind is None and input_size != size:
        raise UserError(
            f"encoder_conf input_layer null takes features of output_size {size}, but they have {input_size} values"
        )
    return build_input_layer(
        kind,
        input_size=input_size,
        size=size,
        dropout_rate=dropout_rate,
        # ESPnet2 adds positions twice without an input layer.
        position=NoPosition() if kind is not None else PositionalEncoding(size, positional_dropout_rate),
        padding_idx=padding_idx,
        is_linear_rectified=True,
    )
