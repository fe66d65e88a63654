"""Feature frames of samples that arrive in pieces, equal to those of the whole recording."""

from __future__ import annotations

import torch
from torch import Tensor

from tympan.errors import UserError
from tympan.features.frontend import DefaultFrontend


class FrameStream:
    """Computes each frame as soon as its samples are there, by applying the frontend to the newest samples.

    The frontend mirrors the signal at both ends. So the first frames of a later part are wrong: they are computed from
    the samples before the new ones, and left out.
    """

    def __init__(self, frontend: DefaultFrontend) -> None:
        if not frontend.apply_stft:
            raise UserError("frontend_conf apply_stft: false takes spectra, so audio can't be streamed")
        self.frontend = frontend
        self.hop = frontend.hop_length
        mirrored = frontend.n_fft // 2 if frontend.center else 0
        self._margin = -(-mirrored // self.hop)
        self._last_sample = mirrored if frontend.center else frontend.n_fft - 1
        """The last sample of a frame, counted from the start of the frame's hop."""
        self._samples: Tensor | None = None
        self._first = 0
        """The frame that the first kept sample belongs to."""
        self._done = 0

    def accept(self, samples: Tensor, *, is_last: bool) -> Tensor:
        """The next samples (time,) -> the frames (1, time, size) that no later sample changes."""
        kept = samples if self._samples is None else torch.cat([self._samples, samples])
        first, done = self._first, self._done
        total = first * self.hop + kept.numel()
        ready = self._ready(total, is_last=is_last)
        if ready <= done:
            self._samples = kept
            return kept.new_zeros(1, 0, self.frontend.output_size)
        length = torch.tensor([kept.numel()], device=kept.device)
        frames: Tensor = self.frontend(kept.unsqueeze(0), length)[0]
        self._done = ready
        self._first = max(0, min(ready - self._margin, total // self.hop))
        self._samples = kept[(self._first - first) * self.hop :]
        return frames[:, done - first : ready - first]

    def _ready(self, total: int, *, is_last: bool) -> int:
        """The number of frames for so many samples: those that are complete, or all at the end."""
        if is_last:
            return int(self.frontend.output_lengths(torch.tensor([total])))
        return max(0, (total - 1 - self._last_sample) // self.hop + 1)
