"""Contextual block encoders on an utterance that arrives in pieces. The output equals that of the whole utterance.

Shapes: T frames after the input layer, D values per frame. The batch size is 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from tympan.errors import UserError
from tympan.models.encoder.frame_blocks import Blocks
from tympan.nn.position import PositionalEncoding
from tympan.nn.subsampling import Conv2dSubsampling


@dataclass(frozen=True)
class BlockStream:
    """The state of an utterance of which only the beginning has arrived. It is never changed: older ones stay valid."""

    features: Tensor | None = None
    """(1, time, input size): features from the first one that the next frame needs."""
    frames: Tensor | None = None
    """(1, T, D): frames from the start of the next block."""
    total: int = 0
    """Number of frames so far."""
    blocks: int = 0
    """Number of blocks that are encoded."""
    written: tuple[Tensor, ...] = ()
    """(1, D) for each layer: the context that the last block wrote, as the input of this layer."""
    tail: Tensor | None = None
    """(1, look_ahead, D): output of the last block for its last frames. They are final if no other block follows."""


class BlockEncoder(Protocol):
    """What this module uses of a `ContextualBlockEncoder`."""

    block_size: int
    hop_size: int
    look_ahead: int
    output_size: int

    @property
    def embed(self) -> nn.Module: ...
    @property
    def pos_enc(self) -> PositionalEncoding: ...

    def output_lengths(self, lengths: Tensor, /) -> Tensor: ...
    def encode_frames(self, x: Tensor, lengths: Tensor, /) -> Tensor: ...
    def first_contexts(self, x: Tensor, blocks: Blocks, first_block: int, /) -> Tensor: ...
    def encode_blocks(
        self, x: Tensor, contexts: Tensor, keys: Tensor, exists: Tensor, before: tuple[Tensor, ...] | None, /
    ) -> tuple[Tensor, list[Tensor]]: ...
    def normalized(self, out: Tensor, /) -> Tensor: ...


def start_blocks(encoder: BlockEncoder) -> BlockStream:
    """The state before the first frame. UserError for options that need the whole utterance."""
    if encoder.block_size == 0:
        raise UserError("encoder_conf block_size 0 makes one block of the whole utterance, so it can't be streamed")
    if _subsampling(encoder.embed) == 0:
        raise UserError("an encoder with input_layer null or embed can't be streamed; use conv2d or linear")
    return BlockStream()


def advance_blocks(
    encoder: BlockEncoder, features: Tensor, state: BlockStream, *, is_last: bool
) -> tuple[Tensor, BlockStream]:
    """The output frames (1, T, D) that the next features (1, time, input size) make final, and the next state."""
    state = _embed(encoder, features, state)
    if state.frames is None:
        return features.new_zeros(1, 0, encoder.output_size), state
    if state.total > encoder.block_size:
        return _encode(encoder, state.frames, state, is_last=is_last)
    # An utterance that fits into one block has other masks, so nothing is final before it is longer than that.
    if not is_last:
        return state.frames[:, :0], state
    return encoder.encode_frames(state.frames, torch.tensor([state.total], device=features.device)), state


def _subsampling(embed: nn.Module) -> int:
    """Number of features per frame; 0 if the input layer needs to know the position of its input."""
    if isinstance(embed, Conv2dSubsampling):
        return math.prod(stride for _, stride in embed.shape)
    is_by_frame = not any(isinstance(part, PositionalEncoding | nn.Embedding) for part in embed.modules())
    return 1 if is_by_frame else 0


def _embed(encoder: BlockEncoder, features: Tensor, state: BlockStream) -> BlockStream:
    """Apply the input layer to features that were not used yet, and keep those that later frames need."""
    waiting = features if state.features is None else torch.cat([state.features, features], dim=1)
    number = int(encoder.output_lengths(torch.tensor([waiting.size(1)])))
    if number == 0:
        return replace(state, features=waiting)
    frames: Tensor = encoder.embed(waiting).x
    return replace(
        state,
        features=waiting[:, number * _subsampling(encoder.embed) :],
        frames=frames if state.frames is None else torch.cat([state.frames, frames], dim=1),
        total=state.total + number,
    )


def _encode(encoder: BlockEncoder, frames: Tensor, state: BlockStream, *, is_last: bool) -> tuple[Tensor, BlockStream]:
    """Encode the blocks that are complete, and at the end also the last one, which may have fewer frames."""
    size, hop, look_ahead = encoder.block_size, encoder.hop_size, encoder.look_ahead
    more = state.total - size
    blocks = (-(-more // hop) if is_last else more // hop) + 1
    emitted = size - look_ahead + (state.blocks - 1) * hop if state.blocks else 0
    pieces = []
    if (new := blocks - state.blocks) > 0:
        used = frames if is_last else frames[:, : (new - 1) * hop + size]
        out, written = _encode_new(encoder, used, state)
        own = out[:, :, size - look_ahead - hop : size - look_ahead].flatten(1, 2)
        first = out[:, 0, : size - look_ahead - hop] if state.blocks == 0 else own[:, :0]
        pieces = [first, own]
        state = replace(
            state,
            frames=frames[:, new * hop :],
            blocks=blocks,
            written=tuple(written),
            tail=out[:, -1, size - look_ahead :],
        )
    if is_last:
        assert state.tail is not None
        pieces.append(state.tail)
    if not pieces:
        return frames[:, :0], state
    return encoder.normalized(torch.cat(pieces, dim=1)[:, : state.total - emitted]), state


def _encode_new(encoder: BlockEncoder, frames: Tensor, state: BlockStream) -> tuple[Tensor, list[Tensor]]:
    """The output (1, K, block_size, D) of all blocks in these frames, and the contexts for the next block."""
    number = frames.size(1)
    lengths = torch.tensor([number], device=frames.device)
    blocks = Blocks(encoder.block_size, encoder.hop_size, encoder.look_ahead, lengths, number)
    positioned = encoder.pos_enc(frames, state.blocks * encoder.hop_size).x
    cut, contexts = blocks.cut(positioned), encoder.first_contexts(frames, blocks, state.blocks)
    exists = torch.ones(1, cut.size(1), encoder.block_size + 2, dtype=torch.bool, device=frames.device)
    keys = exists.clone()
    keys[:, :, -1] = False
    out, written = encoder.encode_blocks(cut, contexts, keys, exists, state.written or None)
    return out[:, :, 1:-1], written
