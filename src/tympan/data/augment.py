"""Waveform augmentation on the fly: speed, reverberation, noise, volume and effects, with ESPnet2's option names.

Every random choice depends only on (seed, epoch, utterance, purpose). It is the same in every worker and rank, and
adding one kind of augmentation does not change the others.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tympan.data.audio import audio_info, read_audio, resample
from tympan.data.effects import Effects
from tympan.data.seeds import rng_for
from tympan.data.waveform_effects import change_speed
from tympan.errors import UserError
from tympan.files import read_text

MOST_DB = 200
_SILENT_POWER = 1e-10


@dataclass(frozen=True)
class Recordings:
    """The entries of a noise_scp or rir_scp file: `id path` or `path` per line."""

    scp: Path
    sources: tuple[str, ...]

    @classmethod
    def read(cls, scp: str | os.PathLike[str], *, option: str) -> Recordings:
        try:
            lines = read_text(scp).splitlines()
        except UserError as error:
            raise UserError(f"{option} {error}") from None
        sources = tuple(line.split(None, 1)[-1].strip() for line in lines if line.strip())
        if not sources:
            raise UserError(f"{option} {os.fspath(scp)}: the file is empty")
        return cls(Path(scp), sources)


class WaveformAugmentation:
    """Augments samples (time,) or (time, channels) in training. Can be pickled."""

    def __init__(
        self,
        *,
        seed: int,
        rate: int | None,
        speed_perturb: Sequence[float] | None = None,
        rir_scp: str | os.PathLike[str] | None = None,
        rir_apply_prob: float = 1.0,
        noise_scp: str | os.PathLike[str] | None = None,
        noise_apply_prob: float = 1.0,
        noise_db_range: str = "13_15",
        volume_perturb: tuple[float, float] | None = None,
        data_aug_effects: Sequence[object] | None = None,
        data_aug_num: tuple[int, int] = (1, 1),
        data_aug_prob: float = 0.0,
        force_single_channel: bool = False,
    ) -> None:
        self.seed = seed
        self.speeds = tuple(speed_perturb or ())
        self.rirs = None if rir_scp is None else Recordings.read(rir_scp, option="rir_scp")
        self.rir_apply_prob = rir_apply_prob
        self.noises = None if noise_scp is None else Recordings.read(noise_scp, option="noise_scp")
        self.noise_apply_prob = noise_apply_prob
        self.noise_db = parse_db_range(noise_db_range)
        self.volume_perturb = volume_perturb
        self.effects = None if not data_aug_effects else Effects(data_aug_effects, data_aug_num)
        self.data_aug_prob = data_aug_prob
        self.force_single_channel = force_single_channel
        if rate is None and (rir_scp is not None or noise_scp is not None):
            raise UserError(
                "noise_scp and rir_scp need a known sample rate: set preprocessor_conf fs to that of the recordings"
            )
        if rate is None and self.effects is not None and self.effects.needs_rate:
            raise UserError(
                "data_aug_effects: filters need a known sample rate: set preprocessor_conf fs to that of the recordings"
            )
        self.rate = rate or 0
        """Sample rate in Hz. Noise and room impulse responses are resampled to it."""
        if any(speed <= 0 for speed in self.speeds):
            raise UserError(f"speed_perturb: expected factors such as 0.9, found {list(self.speeds)}")

    @property
    def stretch(self) -> float:
        """Largest factor by which an utterance may become longer."""
        slowest = min(self.speeds, default=1.0)
        return max(1.0, 1.0 / slowest) * (1.0 if self.effects is None else self.effects.stretch)

    def __call__(self, samples: np.ndarray, utterance_id: str, *, epoch: int) -> np.ndarray:
        def rng(purpose: str) -> np.random.Generator:
            return rng_for(self.seed, epoch, utterance_id, purpose)

        if self.speeds:
            samples = change_speed(samples, float(rng("speed").choice(self.speeds)))
        if self.rirs is not None or self.noises is not None:
            samples = self._room_and_noise(samples, rng("rir"), rng("noise"))
        if self.effects is not None:
            draw = rng("effects")
            if draw.random() < self.data_aug_prob:
                samples = self.effects(samples, self.rate, draw)
        if self.volume_perturb is not None:
            samples = samples * np.float32(rng("volume").uniform(*self.volume_perturb))
        return samples

    def _room_and_noise(self, samples: np.ndarray, room: np.random.Generator, noise: np.random.Generator) -> np.ndarray:
        speech = np.atleast_2d(samples.T).astype(np.float64)  # (channels, time)
        power = speech_power(speech)
        if self.rirs is not None and room.random() < self.rir_apply_prob:
            speech = self._reverberate(speech, power, room)
        if self.noises is not None and noise.random() < self.noise_apply_prob:
            speech = self._add_noise(speech, power, noise)
        loudest = np.abs(speech).max(initial=0.0)
        if loudest > 1.0:
            speech = speech / loudest
        mixed = speech[0] if len(speech) == 1 else speech.T
        return np.ascontiguousarray(mixed, dtype=np.float32)

    def _reverberate(self, speech: np.ndarray, power: float, rng: np.random.Generator) -> np.ndarray:
        """Convolve the first channel with a room impulse response, and restore its power."""
        assert self.rirs is not None
        source = self.rirs.sources[int(rng.integers(len(self.rirs.sources)))]
        with _named("rir_scp", self.rirs):
            response = _channels(read_audio(source, rate=self.rate, base=self.rirs.scp.parent).samples)
        if self.force_single_channel:
            response = response[[int(rng.integers(len(response)))]]
        wet = convolve(speech[:1], response)
        return np.asarray(wet * np.sqrt(power / max(speech_power(wet), _SILENT_POWER)))

    def _add_noise(self, speech: np.ndarray, power: float, rng: np.random.Generator) -> np.ndarray:
        assert self.noises is not None
        source = self.noises.sources[int(rng.integers(len(self.noises.sources)))]
        snr_db = rng.uniform(*self.noise_db)
        with _named("noise_scp", self.noises):
            noise = self._noise_piece(source, speech.shape[1], rng)
        if self.force_single_channel or len(speech) == 1:
            noise = noise[[int(rng.integers(len(noise)))]]
        scale = 10 ** (-snr_db / 20) * np.sqrt(power / max(float(np.mean(noise**2)), _SILENT_POWER))
        return np.asarray(speech + scale * noise)

    def _noise_piece(self, source: str, length: int, rng: np.random.Generator) -> np.ndarray:
        """Return noise (channels, length): a random piece, or a short recording repeated from a random position."""
        assert self.noises is not None
        base = self.noises.scp.parent
        info = audio_info(source, base=base)
        needed = -(-length * info.rate // self.rate)
        if info.frames > needed:
            start = int(rng.integers(info.frames - needed + 1))
            part = read_audio(source, start_s=start / info.rate, end_s=(start + needed) / info.rate, base=base).samples
            piece = _channels(part if info.rate == self.rate else resample(part, info.rate, self.rate))
            return _repeated(piece, length, 0)
        whole = _channels(read_audio(source, rate=self.rate, base=base).samples)
        if whole.shape[1] == 0:
            raise UserError(f"{source}: the recording is empty")
        return _repeated(whole, length, int(rng.integers(whole.shape[1])))


def describe_speeds(factors: Sequence[float]) -> str:
    """The effective factors of speed perturbation. Every utterance gets one of them."""
    if set(factors) <= {1.0}:
        return "none"
    return f"one of {' '.join(f'{factor:g}' for factor in factors)} for each utterance"


def parse_db_range(text: str) -> tuple[float, float]:
    """Parse a range in dB: `13_15` or `10`."""
    parts = text.split("_")
    try:
        low, high = float(parts[0]), float(parts[-1])
    except ValueError:
        low, high = 1.0, 0.0
    if len(parts) > 2 or not -MOST_DB <= low <= high <= MOST_DB:
        raise UserError(
            f"noise_db_range: expected LOW_HIGH in dB such as '13_15', between {-MOST_DB} and {MOST_DB}, found '{text}'"
        )
    return low, high


def speech_power(speech: np.ndarray, *, frame: int = 1024, shift: int = 512, threshold: float = 0.01) -> float:
    """Return the mean square of the frames of (channels, time) above 1 % of the mean power, as in ESPnet2."""
    if speech.shape[1] < frame:
        return float(np.mean(speech**2)) if speech.size else 0.0
    padding = -(speech.shape[1] - frame) % shift
    framed = np.lib.stride_tricks.sliding_window_view(np.pad(speech, ((0, 0), (0, padding))), frame, axis=1)[:, ::shift]
    power = np.mean(framed**2, axis=2)
    mean = power.mean(axis=1, keepdims=True)
    if not mean.any():
        return 0.0
    active = np.repeat(power > threshold * mean, shift, axis=1)
    # The last frame is longer than the shift: the samples after the shift belong to it.
    active = np.pad(active, ((0, 0), (0, max(0, speech.shape[1] - active.shape[1]))), mode="edge")
    return float(np.mean(speech[active[:, : speech.shape[1]]] ** 2))


def convolve(speech: np.ndarray, response: np.ndarray) -> np.ndarray:
    """Return the full convolution (channels, time), cut to the length of the speech."""
    length = speech.shape[1]
    size = 1 << (length + response.shape[1] - 2).bit_length()
    spectrum = np.fft.rfft(speech, size) * np.fft.rfft(response, size)
    return np.fft.irfft(spectrum, size)[:, :length]


def _channels(samples: np.ndarray) -> np.ndarray:
    return np.atleast_2d(samples.T).astype(np.float64)


def _repeated(piece: np.ndarray, length: int, offset: int) -> np.ndarray:
    return piece[:, (np.arange(length) + offset) % piece.shape[1]]


class _named:
    """Add the name of the option to errors about a recording."""

    def __init__(self, option: str, recordings: Recordings) -> None:
        self.prefix = f"{option} {recordings.scp}"

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, UserError):
            raise UserError(f"{self.prefix}: {error}") from None
