"""ESPnet2's default frontend: log-mel filterbanks from audio, inside the model.

Shapes: speech (batch, samples) or (batch, samples, channels); features (batch, frames, mels).
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor, nn

from tympan.config.range import Range
from tympan.errors import UserError
from tympan.features.arrays import Floats
from tympan.nn.full_precision import at_least_float32, full_precision
from tympan.nn.masks import length_mask
from tympan.runtime.device import has_complex


class DefaultFrontend(nn.Module):
    """`frontend: default`. Always in float32 (or float64).

    The end is reflected for each utterance, not for the padded batch. Signals shorter than the reflection
    are reflected repeatedly; ESPnet2 fails there. Of several channels, training uses a random one,
    evaluation the first.
    """

    def __init__(
        self,
        fs: Annotated[int | str, Range(100, 1_000_000)] = 16000,
        n_fft: Annotated[int, Range(2, 1_000_000)] = 512,
        win_length: Annotated[int | None, Range(1, 1_000_000)] = None,
        hop_length: Annotated[int, Range(1, 1_000_000)] = 128,
        window: Literal["hann", "hamming", "blackman", "bartlett", "kaiser"] | None = "hann",
        center: bool = True,
        normalized: bool = False,
        onesided: bool = True,
        n_mels: Annotated[int, Range(1, 100_000)] = 80,
        fmin: Annotated[float | None, Range(0, 500_000)] = None,
        fmax: Annotated[float | None, Range(1, 500_000)] = None,
        htk: bool = False,
        apply_stft: bool = True,
    ) -> None:
        super().__init__()
        if not onesided:
            raise UserError(
                "frontend_conf onesided: false gives twice as many bins as the mel filters expect; use true"
            )
        if win_length is not None and win_length > n_fft:
            raise UserError(f"frontend_conf win_length {win_length} is longer than n_fft {n_fft}")
        rate = parse_rate(fs)
        highest = rate / 2 if fmax is None else fmax
        if (fmin or 0.0) > highest - 1:  # closer edges become equal by rounding, and the filters NaN
            raise UserError(
                f"frontend_conf fmin {fmin} must be at least 1 Hz below fmax, which is {highest:g} Hz here: no mel "
                "filter would be left"
            )
        self.n_fft = n_fft
        self.win_length = n_fft if win_length is None else win_length
        self.hop_length = hop_length
        self.window = window
        self.center = center
        self.normalized = normalized
        self.apply_stft = apply_stft
        self.output_size = n_mels
        self.logmel = LogMel(rate, n_fft, n_mels, fmin=fmin, fmax=fmax, htk=htk)
        weights = torch.ones(self.win_length) if window is None else getattr(torch, f"{window}_window")(self.win_length)
        self.register_buffer("window_weights", weights, persistent=False)
        self._dft: Tensor | None = None

    window_weights: Tensor

    def forward(self, speech: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Features, zero beyond the lengths, and lengths. Without `apply_stft`, speech is (batch, frames, bins, 2)."""
        if len(speech) > 1 and speech.is_cpu and self.apply_stft and not self.training and int(lengths.min()) > 0:
            return self._one_by_one(speech, lengths)
        if not self.apply_stft and speech.dim() != 4:
            raise UserError("frontend_conf apply_stft: false expects spectra, but the data is audio; remove it")
        with full_precision(speech):
            speech = at_least_float32(speech)
            dtype = speech.dtype
            # float32 rounding in the STFT causes errors of 1e-4 in the log of quiet bands; float64 is cheap on a CPU.
            speech = speech.double() if speech.is_cpu else speech
            frame_lengths = self.output_lengths(lengths)
            power = self._stft_power(speech, lengths) if self.apply_stft else speech.square().sum(-1)
            features = self.logmel(power).to(dtype)
            mask = length_mask(frame_lengths, features.size(1)).unsqueeze(-1)
            return features.masked_fill(~mask, 0.0), frame_lengths

    def _one_by_one(self, speech: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """One utterance at a time, so that its spectra stay in the cache and no padding is computed.

        Twice as fast on a CPU for ten utterances of 3 to 10 s.
        """
        rows = zip(torch.split(speech, 1), torch.split(lengths, 1), strict=True)
        alone = [self(row[:, : int(length)], length) for row, length in rows]
        features = nn.utils.rnn.pad_sequence([one[0].squeeze(0) for one in alone], batch_first=True)
        frames = int(self.output_lengths(lengths.new_tensor([speech.size(1)])))
        features = nn.functional.pad(features, (0, 0, 0, frames - features.size(1)))
        return features, torch.cat([one[1] for one in alone])

    def output_lengths(self, lengths: Tensor) -> Tensor:
        """Number of frames for a number of samples; zero samples give zero frames."""
        if not self.apply_stft:
            return lengths
        padded = lengths + 2 * (self.n_fft // 2) if self.center else lengths
        frames = torch.div(padded - self.n_fft, self.hop_length, rounding_mode="floor") + 1
        return frames.clamp(min=0) * (lengths > 0)

    def _one_channel(self, speech: Tensor) -> Tensor:
        if speech.dim() == 2:
            return speech
        channel = int(torch.randint(speech.size(2), ())) if self.training else 0
        return speech[:, :, channel]

    def _stft_power(self, speech: Tensor, lengths: Tensor) -> Tensor:
        speech = self._one_channel(speech)
        if self.center:
            speech = reflect(speech, lengths, self.n_fft // 2)
        if speech.size(1) < self.n_fft:
            speech = nn.functional.pad(speech, (0, self.n_fft - speech.size(1)))
        if not has_complex(speech.device):
            return self._dft_power(speech)
        spectrum = torch.stft(
            speech,
            self.n_fft,
            self.hop_length,
            self.win_length,
            window=self.window_weights.to(speech.dtype),
            center=False,
            normalized=self.normalized,
            onesided=True,
            return_complex=True,
        )
        return torch.addcmul(spectrum.real.square(), spectrum.imag, spectrum.imag).transpose(1, 2)

    def _dft_power(self, speech: Tensor) -> Tensor:
        """The same by a matrix product with cosines and sines, for devices without complex numbers."""
        frames = speech.unfold(1, self.n_fft, self.hop_length)
        parts = (frames @ self._dft_matrix(speech)).square()
        bins = self.n_fft // 2 + 1
        return parts[..., :bins] + parts[..., bins:]

    def _dft_matrix(self, like: Tensor) -> Tensor:
        """(n_fft, 2 * bins): the cosines, then the sines, times the window. Kept for the device and type of `like`."""
        kept = self._dft
        if kept is None or kept.device != like.device or kept.dtype != like.dtype:
            sample = torch.arange(self.n_fft, dtype=torch.float64)
            # The product is reduced first: the cosine of a large angle is inaccurate.
            turns = torch.outer(sample, torch.arange(self.n_fft // 2 + 1, dtype=torch.float64)) % self.n_fft
            angle = turns * (2 * math.pi / self.n_fft)
            before = (self.n_fft - self.win_length) // 2
            window = nn.functional.pad(
                self.window_weights.cpu().double(), (before, self.n_fft - self.win_length - before)
            )
            scale = self.n_fft**-0.5 if self.normalized else 1.0
            matrix = torch.cat([angle.cos(), angle.sin()], dim=1) * (scale * window).unsqueeze(1)
            kept = self._dft = matrix.to(dtype=like.dtype).to(like.device)
        return kept


class LogMel(nn.Module):
    """Natural logarithm of mel-filtered power. The filters are librosa's, kept as the buffer `melmat`."""

    def __init__(
        self, rate: int, n_fft: int, n_mels: int, *, fmin: float | None, fmax: float | None, htk: bool
    ) -> None:
        super().__init__()
        filters = mel_filters(rate, n_fft, n_mels, fmin=fmin or 0.0, fmax=rate / 2 if fmax is None else fmax, htk=htk)
        self.register_buffer("melmat", torch.from_numpy(filters))

    melmat: Tensor

    def forward(self, power: Tensor) -> Tensor:
        """power (batch, frames, bins)."""
        return (power @ self.melmat.to(power.dtype)).clamp(min=1e-10).log()


def mel_filters(rate: int, n_fft: int, n_mels: int, *, fmin: float, fmax: float, htk: bool) -> Floats:
    """(bins, mels) triangles of unit area on the mel scale: Slaney's (linear below 1 kHz), or HTK's."""
    bins = np.linspace(0.0, rate / 2, 1 + n_fft // 2)
    edges = _to_hertz(np.linspace(_to_mel(fmin, htk), _to_mel(fmax, htk), n_mels + 2), htk)
    widths = np.diff(edges)
    distances = edges[:, None] - bins
    rising = -distances[:-2] / widths[:-1, None]
    falling = distances[2:] / widths[1:, None]
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    areas = 2.0 / (edges[2:] - edges[:-2])
    return np.ascontiguousarray((triangles * areas[:, None]).T.astype(np.float32))


# Slaney's Auditory Toolbox: 200/3 Hz per mel up to 1 kHz, then 27 steps per factor of 6.4.
_LINEAR_STEP = 200.0 / 3
_BREAK_HERTZ = 1000.0
_LOG_STEP = np.log(6.4) / 27.0


def _to_mel(hertz: float, htk: bool) -> float:
    if htk:
        return float(2595.0 * np.log10(1.0 + hertz / 700.0))
    if hertz < _BREAK_HERTZ:
        return hertz / _LINEAR_STEP
    return float(_BREAK_HERTZ / _LINEAR_STEP + np.log(hertz / _BREAK_HERTZ) / _LOG_STEP)


def _to_hertz(mels: Floats, htk: bool) -> Floats:
    if htk:
        return 700.0 * (10.0 ** (mels / 2595.0) - 1.0)
    break_mel = _BREAK_HERTZ / _LINEAR_STEP
    above = _BREAK_HERTZ * np.exp(_LOG_STEP * (mels - break_mel))
    return np.where(mels < break_mel, mels * _LINEAR_STEP, above)


def reflect(speech: Tensor, lengths: Tensor, pad: int) -> Tensor:
    """`pad` samples before and after each utterance, mirrored at its first and last sample."""
    lengths = lengths.clamp(min=1).unsqueeze(1)
    distance = torch.arange(1, pad + 1, device=speech.device)
    speech = speech * length_mask(lengths.squeeze(1), speech.size(1))
    padded = nn.functional.pad(speech, (pad, pad))
    before = speech.gather(1, _mirror(distance.flip(0).expand(speech.size(0), -1), lengths))
    after = speech.gather(1, _mirror(lengths - 1 + distance, lengths))
    padded = padded.scatter(1, lengths + pad - 1 + distance, after)
    return torch.cat([before, padded[:, pad:]], dim=1)


def _mirror(index: Tensor, lengths: Tensor) -> Tensor:
    """Positions of an infinite signal that moves back and forth between 0 and length - 1."""
    period = (2 * lengths - 2).clamp(min=1)
    index = index % period
    return torch.minimum(index, 2 * lengths - 2 - index).clamp(min=0)


def parse_rate(fs: int | str, *, option: str = "frontend_conf fs") -> int:
    """16000, "16000" or "16k" as hertz."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(k?)\s*(?:hz)?\s*", str(fs), flags=re.IGNORECASE)
    if match is None:
        raise UserError(f"{option}: '{fs}' is not a sample rate such as 16000 or 16k")
    rate = round(float(match[1]) * (1000 if match[2] else 1))
    if not 100 <= rate <= 1_000_000:
        raise UserError(f"{option}: '{fs}' must be between 100 Hz and 1 MHz")
    return rate
