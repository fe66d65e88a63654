"""Whisper's log-mel features (Radford et al. 2022), computed for each utterance by itself.

Shapes: speech (batch, samples) at 16 kHz; features (batch, frames, mels).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tympan.features.frontend import mel_filters, reflect
from tympan.nn.full_precision import at_least_float32, full_precision
from tympan.nn.masks import length_mask

RATE = 16000
N_FFT = 400
HOP = 160
MAX_SAMPLES = 30 * RATE
"""Whisper processes windows of 30 seconds."""


class WhisperLogMel(nn.Module):
    """Log-mel features, limited to 80 dB below the loudest value of the utterance.

    `pads` extends every utterance with silence to 30 seconds, as Whisper was trained. Longer ones are always cut.
    """

    def __init__(self, n_mels: int, *, pads: bool, max_samples: int = MAX_SAMPLES) -> None:
        super().__init__()
        self.output_size = n_mels
        self.pads = pads
        self.max_samples = max_samples
        filters = mel_filters(RATE, N_FFT, n_mels, fmin=0.0, fmax=RATE / 2, htk=False)
        self.register_buffer("filters", torch.from_numpy(filters), persistent=False)
        self.register_buffer("window", torch.hann_window(N_FFT), persistent=False)

    filters: Tensor
    window: Tensor

    def forward(self, speech: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Features, zero beyond their lengths, and the lengths."""
        speech = speech if speech.dim() == 2 else speech[:, :, 0]
        with full_precision(speech):
            speech, lengths = self._window(at_least_float32(speech), lengths)
            power = self._power(speech, lengths)
            features = (power @ self.filters.to(power.dtype)).clamp(min=1e-10).log10()
            frames = self.output_lengths(lengths)
            mask = length_mask(frames, features.size(1))[:, :, None]
            loudest = features.masked_fill(~mask, -10.0).amax((1, 2), keepdim=True)
            features = (torch.maximum(features, loudest - 8.0) + 4.0) / 4.0
            return features.masked_fill(~mask, 0.0).to(speech.dtype), frames

    def output_lengths(self, lengths: Tensor) -> Tensor:
        """Number of frames for a number of samples."""
        samples = torch.where(lengths > 0, self.max_samples, 0) if self.pads else lengths.clamp(max=self.max_samples)
        return torch.div(samples, HOP, rounding_mode="floor")

    def _window(self, speech: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Cut utterances that are too long, and pad the others if asked to."""
        speech = speech[:, : self.max_samples]
        lengths = lengths.clamp(max=self.max_samples)
        if not self.pads:
            return speech, lengths
        speech = speech.masked_fill(~length_mask(lengths, speech.size(1)), 0.0)
        speech = nn.functional.pad(speech, (0, self.max_samples - speech.size(1)))
        return speech, torch.where(lengths > 0, self.max_samples, 0)

    def _power(self, speech: Tensor, lengths: Tensor) -> Tensor:
        """(batch, frames, bins). The last frame is left out, as in Whisper."""
        frames = max(1, int(lengths.max()) // HOP)
        padded = reflect(speech, lengths, N_FFT // 2)
        padded = nn.functional.pad(padded, (0, max(0, N_FFT + (frames - 1) * HOP - padded.size(1))))
        spectrum = torch.stft(
            padded, N_FFT, HOP, window=self.window.to(speech.dtype), center=False, return_complex=True
        )[:, :, :frames]
        return torch.addcmul(spectrum.real.square(), spectrum.imag, spectrum.imag).transpose(1, 2)
