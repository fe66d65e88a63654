"""The effects of data_aug_effects compared with SciPy, slow references and their definitions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.signal import lfilter

from tympan.config.asr import AsrTrainConfig
from tympan.config.choices import EFFECTS
from tympan.config.read import parse_training
from tympan.data.effects import Effects
from tympan.data.spectral_effects import stretched
from tympan.data.waveform_effects import Effect
from tympan.errors import UserError

RATE = 16000
ESPNET2 = [
    "lowpass",
    "highpass",
    "bandpass",
    "bandreject",
    "bandwidth_limitation",
    "contrast",
    "equalization",
    "pitch_shift",
    "speed_perturb",
    "time_stretch",
    "preemphasis",
    "deemphasis",
    "clipping",
    "polarity_inverse",
    "reverse",
    "corrupt_phase",
]
NEEDED: dict[str, dict[str, Any]] = {
    "speed_perturb": {"factor": 1.25},
    "time_stretch": {"factor": 1.25},
    "pitch_shift": {"n_steps": 3},
}


@pytest.fixture
def speech() -> np.ndarray:
    return (0.2 * np.random.default_rng(0).standard_normal(8000)).astype(np.float32)


def applied(name: str, samples: np.ndarray, seed: int = 0, **options: Any) -> np.ndarray:
    effect: Effect = EFFECTS.build(name, {**NEEDED.get(name, {}), **options})
    return effect(samples, RATE, np.random.default_rng(seed))


def cookbook(name: str, frequency: float, quality: float, gain: float) -> tuple[list[float], list[float]]:
    """The formulas of Bristow-Johnson."""
    w0 = 2 * math.pi * frequency / RATE
    alpha, cosine, amplitude = math.sin(w0) / (2 * quality), math.cos(w0), 10 ** (gain / 40)
    b = {
        "lowpass": [(1 - cosine) / 2, 1 - cosine, (1 - cosine) / 2],
        "highpass": [(1 + cosine) / 2, -(1 + cosine), (1 + cosine) / 2],
        "bandpass": [alpha, 0, -alpha],
        "skirt": [math.sin(w0) / 2, 0, -math.sin(w0) / 2],
        "bandreject": [1, -2 * cosine, 1],
        "equalization": [1 + alpha * amplitude, -2 * cosine, 1 - alpha * amplitude],
    }[name]
    poles = alpha / amplitude if name == "equalization" else alpha
    return b, [1 + poles, -2 * cosine, 1 - poles]


@pytest.mark.parametrize(
    ("name", "form", "options"),
    [
        ("lowpass", "lowpass", {"cutoff_freq": 1200, "Q": 0.8}),
        ("highpass", "highpass", {"cutoff_freq": 2500, "Q": 0.6}),
        ("bandpass", "bandpass", {"center_freq": 2000, "Q": 2.0}),
        ("bandpass", "skirt", {"center_freq": 2000, "Q": 2.0, "const_skirt_gain": True}),
        ("bandreject", "bandreject", {"center_freq": 900, "Q": 0.707}),
        ("equalization", "equalization", {"center_freq": 700, "Q": 0.9, "gain": 6.0}),
    ],
)
def test_filters(speech: np.ndarray, name: str, form: str, options: dict[str, Any]) -> None:
    frequency = options.get("cutoff_freq", options.get("center_freq"))
    b, a = cookbook(form, frequency, options["Q"], options.get("gain", 0.0))
    expected = np.clip(lfilter(b, a, speech.astype(np.float64)), -1, 1)
    np.testing.assert_allclose(applied(name, speech, **options), expected, atol=1e-6)
    both = np.stack([speech, speech[::-1]], axis=1)
    np.testing.assert_array_equal(applied(name, both, **options)[:, 0], applied(name, speech, **options))


def test_emphasis_and_its_inverse(speech: np.ndarray) -> None:
    np.testing.assert_allclose(applied("deemphasis", speech, coeff=0.5), lfilter([1], [1, -0.5], speech), atol=1e-6)
    there = applied("preemphasis", speech, coeff=0.9)
    np.testing.assert_allclose(applied("deemphasis", there, coeff=0.9), np.clip(speech, -1, 1), atol=1e-5)


def test_contrast() -> None:
    """sox: sin(x pi/2 + amount/750 sin(4 x pi/2))."""
    samples = np.array([-1.0, -0.3, 0.0, 0.2, 0.9], dtype=np.float32)
    expected = [math.sin(x * math.pi / 2 + 0.1 * math.sin(x * 2 * math.pi)) for x in samples.tolist()]
    np.testing.assert_allclose(applied("contrast", samples), expected, atol=1e-6)


def slow_vocoder(spectrum: np.ndarray, factor: float, advance: np.ndarray) -> np.ndarray:
    """Phase vocoder of (bins, frames), one frame after the other, as described by Flanagan and Golden."""
    padded = np.pad(spectrum, ((0, 0), (0, 2)))
    phase = np.angle(spectrum[:, 0])
    frames = []
    for time in np.arange(0, spectrum.shape[1], factor):
        here, there = padded[:, int(time)], padded[:, int(time) + 1]
        share = time % 1.0
        frames.append(((1 - share) * abs(here) + share * abs(there)) * np.exp(1j * phase))
        turn = np.angle(there) - np.angle(here) - advance
        phase = phase + advance + turn - 2 * np.pi * np.round(turn / (2 * np.pi))
    return np.stack(frames, axis=1)


@pytest.mark.parametrize("factor", [0.5, 0.75, 1.5])
def test_phase_vocoder(factor: float) -> None:
    rng = np.random.default_rng(1)
    spectrum = rng.standard_normal((5, 30)) + 1j * rng.standard_normal((5, 30))
    advance = np.linspace(0, np.pi * 2, 5)
    found = stretched(torch.from_numpy(spectrum), factor, torch.from_numpy(advance)[:, None])
    np.testing.assert_allclose(found.numpy(), slow_vocoder(spectrum, factor, advance), atol=1e-9)


def loudest_frequency(samples: np.ndarray) -> float:
    return float(np.argmax(np.abs(np.fft.rfft(samples * np.hanning(len(samples)))))) * RATE / len(samples)


def test_stretch_and_shift_of_a_tone() -> None:
    tone = (0.3 * np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE)).astype(np.float32)
    slower = applied("time_stretch", tone, factor=0.8)
    assert len(slower) == RATE / 0.8
    assert loudest_frequency(slower) == pytest.approx(440, abs=3)
    higher = applied("pitch_shift", tone, n_steps=4)
    assert len(higher) == RATE
    assert loudest_frequency(higher) == pytest.approx(440 * 2 ** (4 / 12), abs=3)


def test_phase_noise_and_bandwidth(speech: np.ndarray) -> None:
    np.testing.assert_allclose(applied("corrupt_phase", speech, scale=0.0), speech, atol=1e-5)
    assert np.abs(applied("corrupt_phase", speech) - speech).max() > 0.05
    narrow = applied("bandwidth_limitation", speech, res_type="kaiser_best")  # 8 kHz is the only lower rate
    power = np.abs(np.fft.rfft(narrow)) ** 2
    assert len(narrow) == len(speech)
    assert power[len(power) * 5 // 8 :].sum() < 1e-3 * power.sum()


@pytest.mark.parametrize("name", ESPNET2)
@pytest.mark.parametrize("length", [0, 1, 100, 4000])
@pytest.mark.parametrize("channels", [None, 2])
def test_every_effect_of_espnet2_takes_any_waveform(name: str, length: int, channels: int | None) -> None:
    shape = (length,) if channels is None else (length, channels)
    samples = (0.1 * np.random.default_rng(3).standard_normal(shape)).astype(np.float32)
    out = Effects([[1.0, name, NEEDED.get(name, {})]])(samples, RATE, np.random.default_rng(0))
    assert np.isfinite(out).all()
    assert out.shape[1:] == samples.shape[1:]


@pytest.mark.parametrize(
    ("effects", "message"),
    [
        ('[[1.0, "lowpas", {}]]', "no effect 'lowpas'. Did you mean 'lowpass'"),
        ('[[1.0, "lowpass", {cutoff: 3}]]', "the effect 'lowpass' has no key 'cutoff'"),
        ('[[1.0, "lowpass", {Q: steep}]]', "Q: expects float"),
        ("[[1.0, []]]", "expected a group such as"),
        ('[[1.0, "reverse", {}, 5]]', "expected an entry such as"),
        ('[[true, "reverse", {}]]', "expected an entry such as"),
        ('[[1.0e308, "reverse", {}]]', "the weight of an entry must be above 0 and at most 1000000"),
        ('[[1.0, [[0.5, "pitch_shift", {}]]]]', "the effect 'pitch_shift' needs the key 'n_steps'"),
    ],
)
@pytest.mark.parametrize("more", [["--print_config"], ["--collect_stats", "true"], []])
def test_mistakes_are_found_before_anything_is_built(effects: str, message: str, more: list[str]) -> None:
    argv = ["--preprocessor_conf", f"{{data_aug_effects: {effects}}}", *more]
    with pytest.raises(UserError, match="preprocessor_conf.*" + message.replace("(", r"\(")):
        parse_training(AsrTrainConfig, argv, prog="test")


def test_quantiles_that_leave_nothing_are_rejected(speech: np.ndarray) -> None:
    with pytest.raises(UserError, match=r"min_quantile 0\.5 must be below max_quantile 0\.5"):
        applied("clipping", speech, min_quantile=0.5, max_quantile=0.5)


def test_a_filter_above_half_the_rate_is_rejected(speech: np.ndarray) -> None:
    with pytest.raises(UserError, match="9000 Hz needs a sample rate of more than 18000 Hz, found 16000 Hz"):
        applied("lowpass", speech, cutoff_freq=9000)
