"""Waveform augmentation: values compared with SciPy and definitions, and the seeds of random choices."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import scipy.signal
import soundfile

from tympan.data.augment import WaveformAugmentation, convolve, parse_db_range, speech_power
from tympan.data.effects import Effects
from tympan.data.preprocess import SpeechPreprocessor
from tympan.data.waveform_effects import change_speed
from tympan.errors import UserError

RATE = 16000


@pytest.fixture
def speech() -> np.ndarray:
    rng = np.random.default_rng(3)
    return (0.05 * rng.standard_normal(RATE)).astype(np.float32)


@pytest.fixture
def rooms(tmp_path: Path) -> Path:
    rng = np.random.default_rng(4)
    for number in range(3):
        tail = rng.standard_normal(2000) * np.exp(-np.arange(2000) / 300)
        tail[0] = 8.0
        soundfile.write(tmp_path / f"room{number}.wav", 0.1 * tail, RATE, subtype="FLOAT")
    (tmp_path / "rir.scp").write_text("room0.wav\nr1 room1.wav\nr2 room2.wav\n")
    return tmp_path / "rir.scp"


@pytest.fixture
def noises(tmp_path: Path) -> Path:
    rng = np.random.default_rng(5)
    for name, length, rate in (("long", 5 * RATE, RATE), ("short", 3000, RATE), ("slow", 8000, 8000)):
        soundfile.write(tmp_path / f"{name}.wav", 0.2 * rng.standard_normal(length), rate, subtype="FLOAT")
    (tmp_path / "noise.scp").write_text("".join(f"{n} {tmp_path}/{n}.wav\n" for n in ("long", "short", "slow")))
    return tmp_path / "noise.scp"


def test_convolution_equals_scipys(speech: np.ndarray) -> None:
    dry = speech.astype(np.float64)
    response = np.random.default_rng(0).standard_normal((2, 700))
    wanted = np.stack([scipy.signal.convolve(dry, channel)[: len(dry)] for channel in response])
    assert np.allclose(convolve(dry[None], response), wanted, atol=1e-9)


def test_power_is_that_of_the_speech_alone() -> None:
    rng = np.random.default_rng(0)
    loud = rng.standard_normal(20 * 512)
    signal = np.concatenate([np.zeros(40 * 512), loud, np.zeros(40 * 512)])[None]
    assert speech_power(signal) == pytest.approx(float(np.mean(loud**2)), rel=0.15)
    assert speech_power(np.zeros((1, 5000))) == 0.0
    assert speech_power(loud[None, :500]) == pytest.approx(float(np.mean(loud[:500] ** 2)))


@pytest.mark.parametrize("snr", ["0", "10_10", "20"])
def test_noise_has_the_asked_for_ratio(speech: np.ndarray, noises: Path, snr: str) -> None:
    augment = WaveformAugmentation(seed=1, rate=RATE, noise_scp=noises, noise_db_range=snr)
    for epoch in range(1, 9):
        mixed = augment(speech, "u", epoch=epoch)
        added = mixed.astype(np.float64) - speech
        ratio = 10 * np.log10(speech_power(speech[None].astype(np.float64)) / np.mean(added**2))
        assert len(mixed) == len(speech)
        assert ratio == pytest.approx(float(snr.split("_")[0]), abs=0.2)


def test_a_room_keeps_length_and_power(speech: np.ndarray, rooms: Path) -> None:
    augment = WaveformAugmentation(seed=1, rate=RATE, rir_scp=rooms)
    wet = augment(speech, "u", epoch=1)
    assert wet.shape == speech.shape
    assert wet.dtype == np.float32
    assert speech_power(wet[None].astype(np.float64)) == pytest.approx(
        speech_power(speech[None].astype(np.float64)), rel=1e-4
    )
    responses = [soundfile.read(rooms.parent / f"room{n}.wav")[0] for n in range(3)]
    alike = [abs(np.corrcoef(wet, convolve(speech[None], r[None])[0])[0, 1]) for r in responses]
    assert max(alike) > 0.999


def test_rooms_of_several_microphones(speech: np.ndarray, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "two.wav", np.array([[0.5, 0.2], [0.1, 0.3]]), RATE, subtype="FLOAT")
    (tmp_path / "rir.scp").write_text("r two.wav\n")
    augment = WaveformAugmentation(seed=1, rate=RATE, rir_scp=tmp_path / "rir.scp")
    assert augment(speech, "u", epoch=1).shape == (len(speech), 2)
    single = WaveformAugmentation(seed=1, rate=RATE, rir_scp=tmp_path / "rir.scp", force_single_channel=True)
    assert single(speech, "u", epoch=1).shape == speech.shape


def test_loud_mixtures_do_not_clip(noises: Path) -> None:
    loud = np.full(4000, 0.9, dtype=np.float32)
    mixed = WaveformAugmentation(seed=1, rate=RATE, noise_scp=noises, noise_db_range="-5")(loud, "u", epoch=1)
    assert np.abs(mixed).max() == pytest.approx(1.0, abs=1e-6)


def test_probabilities(speech: np.ndarray, noises: Path) -> None:
    augment = WaveformAugmentation(seed=1, rate=RATE, noise_scp=noises, noise_apply_prob=0.3)
    changed = [not np.array_equal(augment(speech[:2000], f"u{n}", epoch=1), speech[:2000]) for n in range(200)]
    assert 0.2 < np.mean(changed) < 0.4
    never = WaveformAugmentation(seed=1, rate=RATE, noise_scp=noises, noise_apply_prob=0.0)
    assert np.array_equal(never(speech, "u", epoch=1), speech)


def test_speed_changes_length_and_pitch() -> None:
    tone = np.sin(2 * np.pi * 1000 * np.arange(RATE) / RATE).astype(np.float32)
    for factor in (0.9, 1.1):
        changed = change_speed(tone, factor)
        assert len(changed) == pytest.approx(RATE / factor, abs=2)
        spectrum = np.abs(np.fft.rfft(changed))
        assert np.argmax(spectrum) * RATE / len(changed) == pytest.approx(1000 * factor, abs=2)
    assert change_speed(tone, 1.0) is tone
    augment = WaveformAugmentation(seed=0, rate=None, speed_perturb=(0.9, 1.0, 1.1))
    lengths = {round(RATE / len(augment(tone, f"u{n}", epoch=1)), 1) for n in range(30)}
    assert lengths == {0.9, 1.0, 1.1}
    assert augment.stretch == pytest.approx(1 / 0.9)


def test_choices_come_from_seed_epoch_and_utterance(speech: np.ndarray, noises: Path, rooms: Path) -> None:
    def make(seed: int, **more: object) -> WaveformAugmentation:
        return WaveformAugmentation(seed=seed, rate=RATE, noise_scp=noises, **more)  # type: ignore[arg-type]

    one = make(1)(speech, "u", epoch=1)
    assert np.array_equal(one, make(1)(speech, "u", epoch=1))
    assert np.array_equal(one, pickle.loads(pickle.dumps(make(1)))(speech, "u", epoch=1))
    for other in (make(2)(speech, "u", epoch=1), make(1)(speech, "v", epoch=1), make(1)(speech, "u", epoch=2)):
        assert not np.array_equal(one, other)
    # An impulse response that is never applied does not change the choice of the noise.
    assert np.array_equal(one, make(1, rir_scp=rooms, rir_apply_prob=0.0)(speech, "u", epoch=1))


def test_volume(speech: np.ndarray) -> None:
    augment = WaveformAugmentation(seed=0, rate=None, volume_perturb=(0.5, 2.0))
    gains = np.array([augment(speech, f"u{n}", epoch=1)[5] / speech[5] for n in range(100)])
    assert 0.5 <= gains.min() < 0.6
    assert 1.8 < gains.max() <= 2.0


def test_effects_draw_one_of_a_group(speech: np.ndarray) -> None:
    effects = Effects([[1.0, [[0.5, "speed_perturb", {"factor": 0.5}], [0.5, "speed_perturb", {"factor": 2.0}]]]])
    lengths = {len(effects(speech, RATE, np.random.default_rng(n))) for n in range(20)}
    assert len(lengths) == 2
    assert effects.stretch == 2.0
    inverse = Effects([[1.0, "polarity_inverse", {}], [1.0, "reverse", {}]], (2, 2))
    assert np.array_equal(inverse(speech, RATE, np.random.default_rng(0)), -speech[::-1])


def test_effects_have_their_meaning(speech: np.ndarray) -> None:
    rng = np.random.default_rng(0)
    emphasised = Effects([[1, "preemphasis", {"coeff": 0.5}]])(speech, RATE, rng)
    assert np.allclose(emphasised[1:], speech[1:] - 0.5 * speech[:-1])
    clipped = Effects([[1, "clipping", {"min_quantile": 0.1, "max_quantile": 0.9}]])(speech, RATE, rng)
    assert clipped.max() == pytest.approx(np.quantile(speech, 0.9), rel=1e-5)
    noisy = Effects([[1, "white_noise", {"min_snr": 10, "max_snr": 10}]])(speech, RATE, rng)
    assert 10 * np.log10(np.mean(speech**2) / np.mean((noisy - speech) ** 2)) == pytest.approx(10, abs=0.1)
    louder = Effects([[1, "volume", {"low_db": 6, "high_db": 6}]])(speech, RATE, rng)
    assert np.allclose(louder, speech * 10 ** (6 / 20), rtol=1e-5)


@pytest.mark.parametrize(
    ("effects", "message"),
    [
        ([["speed_perturb", 0.9]], "an entry such as"),
        ([[1.0, "robot", {}]], "there is no effect 'robot'.*Known: speed_perturb"),
        ([[1.0, "speed_perturb", {}]], "the effect 'speed_perturb' needs the key 'factor'"),
        ([[1.0, "clipping", {"quantile": 1}]], "effect 'clipping' has no key 'quantile'"),
    ],
)
def test_mistakes_in_effects(effects: list[object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Effects(effects)


def test_other_mistakes(tmp_path: Path, speech: np.ndarray) -> None:
    with pytest.raises(UserError, match=r"noise_scp .*none\.scp: no such file"):
        WaveformAugmentation(seed=0, rate=RATE, noise_scp=tmp_path / "none.scp")
    (tmp_path / "n.scp").write_text("a gone.wav\n")
    augment = WaveformAugmentation(seed=0, rate=RATE, noise_scp=tmp_path / "n.scp")
    with pytest.raises(UserError, match=r"noise_scp .*n\.scp: .*gone\.wav"):
        augment(speech, "u", epoch=1)
    with pytest.raises(UserError, match="preprocessor_conf fs"):
        WaveformAugmentation(seed=0, rate=None, noise_scp=tmp_path / "n.scp")
    for text in ("x", "5_3", "1_2_3"):
        with pytest.raises(UserError, match="noise_db_range"):
            parse_db_range(text)
    assert parse_db_range("-3_4") == (-3.0, 4.0)


def test_volume_normalisation_and_shortest_length(speech: np.ndarray) -> None:
    loud = SpeechPreprocessor(volume_normalize=1.0)(speech, "u", epoch=1)
    assert np.abs(np.asarray(loud)).max() == pytest.approx(1.0)
    silent = np.zeros(10, dtype=np.float32)
    assert np.array_equal(SpeechPreprocessor(volume_normalize=1.0)(silent, "u", epoch=1), silent)
    padded = SpeechPreprocessor(min_sample_size=15, audio_pad_value=0.5)(silent, "u", epoch=1)
    assert np.asarray(padded).tolist() == [0.0] * 10 + [0.5] * 5
    stereo = np.stack([silent, silent + 1], axis=1)
    assert SpeechPreprocessor(force_single_channel=True)(stereo, "u", epoch=1).shape == (10,)
