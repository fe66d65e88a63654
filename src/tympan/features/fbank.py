"""Mel filterbank energies and MFCC as in Kaldi, computed with kaldi-native-fbank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import kaldi_native_fbank as knf
import numpy as np

from tympan.config.range import Range
from tympan.errors import UserError
from tympan.features.arrays import Floats
from tympan.features.framing import Amount, Count, Size, check_framing, check_ranges

_PIECE = 160_000
"""Number of samples passed at a time."""


@dataclass(frozen=True)
class FrameOptions:
    """How audio is split into frames; names and defaults are Kaldi's (with '_' for '-')."""

    sample_frequency: Size = 16000.0
    frame_length: Size = 25.0
    """ms"""
    frame_shift: Size = 10.0
    """ms"""
    dither: Size = 1.0
    """Standard deviation of the noise added to 16-bit samples; 0: no dither."""
    preemphasis_coefficient: Amount = 0.97
    remove_dc_offset: bool = True
    window_type: str = "povey"
    blackman_coeff: Amount = 0.42
    round_to_power_of_two: bool = True
    snip_edges: bool = True
    num_mel_bins: Count = 23
    low_freq: Amount = 20.0
    high_freq: Amount = 0.0
    """0 or less: this far below half the sample frequency."""
    vtln_low: Amount = 100.0
    vtln_high: Amount = -500.0
    energy_floor: Size = 0.0
    raw_energy: bool = True
    htk_compat: bool = False
    allow_downsample: bool = False
    allow_upsample: bool = False

    def __post_init__(self) -> None:
        windows = ("hamming", "hanning", "povey", "rectangular", "sine", "blackman")
        if self.window_type not in windows:
            raise UserError(f"--window-type is '{self.window_type}', allowed: {', '.join(windows)}")
        check_framing(self.sample_frequency, frame_length=self.frame_length, frame_shift=self.frame_shift)
        if not 0 <= self.preemphasis_coefficient <= 1:
            raise UserError(f"--preemphasis-coefficient={self.preemphasis_coefficient:g} must be between 0 and 1")
        if self.num_mel_bins < 3:
            raise UserError(f"--num-mel-bins={self.num_mel_bins} must be at least 3")
        half = self.sample_frequency / 2
        high = self.high_freq if self.high_freq > 0 else half + self.high_freq
        if not 0 <= self.low_freq < high <= half:
            raise UserError(
                f"--low-freq={self.low_freq:g} and --high-freq={self.high_freq:g} must form a band between 0 and "
                f"{half:g} Hz, half of --sample-frequency"
            )
        check_ranges(self)


@dataclass(frozen=True)
class FbankOptions(FrameOptions):
    """Options of compute-fbank-feats. Kaldi's own default is 23 bins; the recipes' conf files use 80."""

    num_mel_bins: Count = 80
    use_energy: bool = False
    use_log_fbank: bool = True
    use_power: bool = True


@dataclass(frozen=True)
class MfccOptions(FrameOptions):
    """Options of compute-mfcc-feats."""

    use_energy: bool = True
    num_ceps: Annotated[int, Range(1, 1_000_000)] = 13
    cepstral_lifter: Size = 22.0


def fbank(samples: Floats, options: FbankOptions, *, rng: np.random.Generator | None = None) -> Floats:
    """(frames, num_mel_bins [+ 1]) float32 from samples in [-1, 1); no frames if the audio is shorter than one.

    Dither is drawn from `rng` once per sample; Kaldi draws it again for every frame. So overlapping frames share the
    same noise, and every run gives the same result.
    """
    native = knf.FbankOptions()
    _fill(native, options)
    native.use_energy = options.use_energy
    native.use_log_fbank = options.use_log_fbank
    native.use_power = options.use_power
    return _run(knf.OnlineFbank(native), samples, options, rng)


def mfcc(samples: Floats, options: MfccOptions, *, rng: np.random.Generator | None = None) -> Floats:
    """(frames, num_ceps) float32; otherwise as `fbank`."""
    if options.num_ceps > options.num_mel_bins:
        raise UserError(f"--num-ceps={options.num_ceps} must not exceed --num-mel-bins={options.num_mel_bins}")
    native = knf.MfccOptions()
    _fill(native, options)
    native.use_energy = options.use_energy
    native.num_ceps = options.num_ceps
    native.cepstral_lifter = options.cepstral_lifter
    return _run(knf.OnlineMfcc(native), samples, options, rng)


def _fill(native: knf.FbankOptions | knf.MfccOptions, options: FrameOptions) -> None:
    frame, mel = native.frame_opts, native.mel_opts
    frame.samp_freq = options.sample_frequency
    frame.frame_length_ms = options.frame_length
    frame.frame_shift_ms = options.frame_shift
    frame.dither = 0.0
    frame.preemph_coeff = options.preemphasis_coefficient
    frame.remove_dc_offset = options.remove_dc_offset
    frame.window_type = options.window_type
    frame.blackman_coeff = options.blackman_coeff
    frame.round_to_power_of_two = options.round_to_power_of_two
    frame.snip_edges = options.snip_edges
    mel.num_bins = options.num_mel_bins
    mel.low_freq = options.low_freq
    mel.high_freq = options.high_freq
    mel.vtln_low = options.vtln_low
    mel.vtln_high = options.vtln_high
    native.energy_floor = options.energy_floor
    native.raw_energy = options.raw_energy
    native.htk_compat = options.htk_compat


def _run(
    online: knf.OnlineFbank | knf.OnlineMfcc,
    samples: Floats,
    options: FrameOptions,
    rng: np.random.Generator | None,
) -> Floats:
    scaled = np.asarray(samples, dtype=np.float32) * np.float32(32768)
    if options.dither:
        noise = (rng or np.random.default_rng()).standard_normal(len(scaled), dtype=np.float32)
        scaled += np.float32(options.dither) * noise
    for start in range(0, len(scaled), _PIECE):
        # The binding is fastest with a list, but a list of an hour of audio would take gigabytes.
        online.accept_waveform(options.sample_frequency, scaled[start : start + _PIECE].tolist())
    online.input_finished()
    frames = [online.get_frame(index) for index in range(online.num_frames_ready)]
    return np.stack(frames) if frames else np.zeros((0, online.dim), np.float32)
