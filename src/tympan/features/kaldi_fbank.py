"""Kaldi's log mel filterbank in torch, for a padded batch of audio."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

FRAME, SHIFT, FFT = 400, 160, 512
"""Samples of a frame (25 ms), of its shift (10 ms), and points of the Fourier transform, at 16 kHz."""
LOWEST_HZ = 20.0
PREEMPHASIS = 0.97


class KaldiFbank(nn.Module):
    """Audio at 16 kHz, scaled to [-1, 1] -> (batch, frames, bands), without dither. Frames end within the audio."""

    def __init__(self, bands: int) -> None:
        super().__init__()
        window = torch.hann_window(FRAME, periodic=False, dtype=torch.float64) ** 0.85
        self.register_buffer("window", window.float(), persistent=False)
        self.register_buffer("filters", mel_filters(bands), persistent=False)

    window: Tensor
    filters: Tensor  # (FFT // 2, bands)

    def forward(self, speech: Tensor) -> Tensor:
        """speech (batch, samples)."""
        if speech.size(1) < FRAME:
            return speech.new_zeros(speech.size(0), 0, self.filters.size(1))
        frames: Tensor = (speech * 2.0**15).unfold(1, FRAME, SHIFT)
        frames = frames - frames.mean(-1, keepdim=True)
        before = torch.cat([frames[..., :1], frames[..., :-1]], dim=-1)
        frames = (frames - PREEMPHASIS * before) * self.window.to(frames.dtype)
        power: Tensor = torch.fft.rfft(frames, n=FFT).abs().square()[..., : FFT // 2]
        return (power @ self.filters.to(power.dtype)).clamp(min=torch.finfo(torch.float32).eps).log()

    @staticmethod
    def output_lengths(lengths: Tensor) -> Tensor:
        """Number of frames for a number of samples."""
        return (torch.div(lengths - FRAME, SHIFT, rounding_mode="floor") + 1).clamp(min=0)


def mel_filters(bands: int, rate: int = 16000) -> Tensor:
    """(FFT // 2, bands): triangles that have their corners on Kaldi's mel scale."""
    highest = rate / 2
    corners = np.linspace(_mel(LOWEST_HZ), _mel(highest), bands + 2)
    points = np.array([_mel(rate / FFT * index) for index in range(FFT // 2)])[:, None]
    rising = (points - corners[:-2]) / (corners[1:-1] - corners[:-2])
    falling = (corners[2:] - points) / (corners[2:] - corners[1:-1])
    return torch.from_numpy(np.maximum(0.0, np.minimum(rising, falling))).float()


def _mel(hertz: float) -> float:
    return 1127.0 * math.log(1.0 + hertz / 700.0)
