"""Audio and spectrograms of the report: recordings that are missing, unplayable in a browser, empty, or very long."""

from __future__ import annotations

import base64
import io
import re
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from tests.score.report_page import page_data
from tympan.bin.report import main
from tympan.data.audio import Audio
from tympan.errors import UserError
from tympan.score.media import PICTURE_HEIGHT, PICTURE_WIDTH, spectrogram

UTTERANCES = ("s1-a", "s2-b", "s3-c")


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Three utterances with audio."""
    samples = 0.1 * np.random.default_rng(0).standard_normal(8000)
    for name in UTTERANCES:
        soundfile.write(tmp_path / f"{name}.wav", samples, 16000)
    (tmp_path / "wav.scp").write_text("".join(f"{name} {tmp_path}/{name}.wav\n" for name in UTTERANCES))
    for name in ("text", "hyp"):
        (tmp_path / name).write_text("".join(f"{utterance} x y\n" for utterance in UTTERANCES))
    return tmp_path


def reported(data_dir: Path, *options: str) -> list[dict]:
    """The utterances as the page has them."""
    page = data_dir / "report.html"
    files = [str(data_dir / "text"), str(data_dir / "hyp"), "--data_dir", str(data_dir), "--output", str(page)]
    assert main([*files, *options]) == 0
    return page_data(page)["utterances"]


def test_an_utterance_that_wav_scp_lacks_does_not_stop_the_report(
    data_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (data_dir / "wav.scp").write_text(f"s1-a {data_dir}/s1-a.wav\n")
    assert ["audio" in utterance for utterance in reported(data_dir)] == [True, False, False]
    assert f"{data_dir}: no audio for 2 of 3 utterances: s2-b, s3-c" in caplog.text


def test_a_segment_of_a_recording_that_wav_scp_lacks_does_not_stop_the_report(
    data_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (data_dir / "segments").write_text("s1-a s1-a 0 0.2\ns2-b lost 0 0.2\ns3-c s1-a 0.2 -1\n")
    assert ["audio" in utterance for utterance in reported(data_dir)] == [True, False, True]
    assert "no audio for 1 of 3 utterances: s2-b" in caplog.text


def test_a_data_directory_of_another_set_is_rejected(data_dir: Path) -> None:
    (data_dir / "wav.scp").write_text(f"other {data_dir}/s1-a.wav\n")
    with pytest.raises(
        UserError,
        match=re.escape("no audio for any utterance (s1-a, s2-b, s3-c); check that it belongs to the same data set"),
    ):
        reported(data_dir)


@pytest.mark.parametrize("pictures", ["0", "3"])
@pytest.mark.parametrize(
    ("container", "codec", "is_linked"),
    [
        *(("WAV", codec, True) for codec in ("PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "ULAW")),
        *(("WAV", codec, False) for codec in ("IMA_ADPCM", "MS_ADPCM", "DOUBLE", "GSM610")),
        ("WAVEX", "PCM_24", True),
        ("NIST", "PCM_16", False),
    ],
)
def test_a_wav_is_linked_if_browsers_play_what_is_in_it(
    data_dir: Path, container: str, codec: str, is_linked: bool, pictures: str
) -> None:
    samples = 0.1 * np.random.default_rng(0).standard_normal(8000)
    soundfile.write(data_dir / "s2-b.wav", samples, 16000, format=container, subtype=codec)
    linked, found, _ = reported(data_dir, "--spectrograms", pictures)
    assert linked["audio"] == "s1-a.wav"
    assert found["audio"].startswith("s2-b.wav" if is_linked else "data:audio/mpeg;base64,")
    assert found["t"] == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("pictures", ["0", "3"])
def test_an_empty_recording_is_reported_when_audio_is_linked(
    data_dir: Path, pictures: str, caplog: pytest.LogCaptureFixture
) -> None:
    soundfile.write(data_dir / "s2-b.wav", np.zeros(0), 16000)
    assert ["audio" in utterance for utterance in reported(data_dir, "--spectrograms", pictures)] == [True, False, True]
    assert "s2-b.wav: has no samples" in caplog.text


def test_a_spectrogram_of_a_long_recording_takes_little_memory() -> None:
    audio = Audio(0.1 * np.random.default_rng(0).standard_normal(600 * 8000, dtype=np.float32), 8000)
    spectrogram(Audio(audio.samples[:8000], 8000))  # loads the code that draws it
    tracemalloc.start()
    spectrogram(audio)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < audio.samples.nbytes


@pytest.mark.parametrize("duration_s", [1, 60])
def test_a_spectrogram_shows_frequency_and_time(duration_s: int) -> None:
    rate = 8000
    time = np.arange(duration_s * rate) / rate
    tones = np.sin(2 * np.pi * np.where(time < duration_s / 2, 1000, 3000) * time).astype(np.float32)
    picture = base64.b64decode(spectrogram(Audio(tones, rate)).removeprefix("data:image/jpeg;base64,"))
    image = np.asarray(Image.open(io.BytesIO(picture)).convert("L"), dtype=np.float32)
    width = min(2 * (1 + (len(tones) - 200) // 80), PICTURE_WIDTH)
    assert image.shape == (PICTURE_HEIGHT, width)
    # The lowest row is 0 Hz, the highest half of the rate.
    for half, frequency in ((image[:, : width // 2 - 4], 1000), (image[:, width // 2 + 4 :], 3000)):
        brightest = half.mean(axis=1).argmax()
        assert (1 - brightest / PICTURE_HEIGHT) * rate / 2 == pytest.approx(frequency, abs=60)
