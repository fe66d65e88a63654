"""How the frames of a batch lie in the overlapping blocks of contextual block encoders.

Shapes: B utterances, T frames, K blocks, W = block_size + 2 positions of a block: the context read, the frames, the
context written.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Blocks:
    """How the frames of a batch lie in blocks. Everything follows from the lengths and the number of frames."""

    size: int
    """Frames of a block; that of the batch if all utterances fit into one block."""
    hop: int
    look_ahead: int
    lengths: Tensor  # (B,)
    frames: int

    @property
    def is_cut(self) -> bool:
        """Whether the longest utterance needs more than one block."""
        return self.frames > self.size

    @property
    def number(self) -> int:
        return -(-(self.frames - self.size) // self.hop) + 1 if self.is_cut else 1

    def counts(self) -> Tensor:
        """(B,): number of blocks of each utterance."""
        more = torch.div(self.lengths - self.size + self.hop - 1, self.hop, rounding_mode="floor")
        return more.clamp(min=0) + 1

    def frame_of(self) -> Tensor:
        """(K, size): number of the frame at every position of the blocks."""
        first = torch.arange(self.number, device=self.lengths.device) * self.hop
        return first.unsqueeze(1) + torch.arange(self.size, device=self.lengths.device)

    def is_frame(self) -> Tensor:
        """(B, K, size): whether the utterance has this block, and a frame there."""
        has_block = torch.arange(self.number, device=self.lengths.device) < self.counts().unsqueeze(1)
        return has_block.unsqueeze(2) & (self.frame_of() < self.lengths.view(-1, 1, 1))

    def masks(self) -> tuple[Tensor, Tensor]:
        """(B, K, W) which positions attention may look at, and which exist for convolutions.

        A block of an utterance that is cut exists as a whole, although its last frames may be empty, as in ESPnet2.
        """
        has_block = torch.arange(self.number, device=self.lengths.device) < self.counts().unsqueeze(1)
        is_long = (self.lengths > self.size).view(-1, 1, 1) & has_block.unsqueeze(2)
        alone = nn.functional.pad(self.is_frame(), (1, 1))
        keys = torch.ones(self.size + 2, dtype=torch.bool, device=self.lengths.device)
        keys[-1] = False
        return torch.where(is_long, keys, alone), alone | is_long

    def cut(self, x: Tensor) -> Tensor:
        """(B, T, size of a frame) -> (B, K, frames of a block, size of a frame), zero where there is no frame."""
        index = self.frame_of().clamp(max=self.frames - 1)
        return x[:, index] * self.is_frame().unsqueeze(3)

    def joined(self, blocks: Tensor) -> Tensor:
        """(B, K, W, size of a frame) -> (B, T, size of a frame): each frame from the block that outputs it."""
        frame = torch.arange(self.frames, device=blocks.device).expand(len(blocks), -1)
        block = torch.div(frame - (self.size - self.look_ahead), self.hop, rounding_mode="floor") + 1
        block = block.clamp(min=0).minimum(self.counts().unsqueeze(1) - 1)
        flat = block * blocks.size(2) + (frame - block * self.hop).clamp(max=self.size - 1) + 1
        return blocks.flatten(1, 2).gather(1, flat.unsqueeze(2).expand(-1, -1, blocks.size(3)))
