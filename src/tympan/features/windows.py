"""`frontend: sliding_window`: windows of the waveform itself, for a preencoder that learns its filters."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor, nn

from tympan.config.range import Range
from tympan.errors import UserError
from tympan.nn.masks import length_mask


class SlidingWindow(nn.Module):
    """Frames of `win_length` samples, `hop_length` apart, of each channel. Samples after the last frame are dropped.

    Audio that is shorter than a window has no frames; ESPnet2 fails there. `fs` is not used, as in ESPnet2.
    """

    def __init__(
        self,
        win_length: Annotated[int, Range(above=0, most=1_000_000)] = 400,
        hop_length: Annotated[int, Range(above=0, most=1_000_000)] = 160,
        channels: Annotated[int, Range(1, 1_000)] = 1,
        padding: Annotated[int | None, Range(0, 1_000_000)] = None,
        fs: Annotated[int | str | None, Range(100, 1_000_000)] = None,
    ) -> None:
        super().__init__()
        if padding is not None:
            raise UserError(f"frontend_conf padding: {padding} is not supported (nor is it in ESPnet2); use null")
        self.win_length = win_length
        self.hop_length = hop_length
        self.channels = channels
        self.output_size = win_length * channels

    def forward(self, speech: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """speech (batch, samples) or (batch, samples, channels) -> (batch, frames, channels * window), lengths."""
        found = 1 if speech.dim() == 2 else speech.size(2)
        if found != self.channels:
            raise UserError(f"frontend_conf channels is {self.channels}, but the recordings have {found}")
        waves = speech.reshape(speech.size(0), speech.size(1), self.channels)
        frame_lengths = self.output_lengths(lengths)
        short = self.win_length - waves.size(1)
        if short > 0:
            waves = nn.functional.pad(waves, (0, 0, 0, short))
        frames = waves.unfold(1, self.win_length, self.hop_length).flatten(2)
        mask = length_mask(frame_lengths, frames.size(1)).unsqueeze(-1)
        return frames.masked_fill(~mask, 0.0), frame_lengths

    def output_lengths(self, lengths: Tensor) -> Tensor:
        """Number of frames for a number of samples."""
        steps = torch.div(lengths - self.win_length, self.hop_length, rounding_mode="floor")
        return (steps + 1).clamp(min=0)
