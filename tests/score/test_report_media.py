"""Sound and spectrograms of the report: recordings that are missing, unplayable in a browser, empty, or very long."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tympan.bin.report import main
from tympan.errors import UserError

UTTERANCES = ("s1-a", "s2-b", "s3-c")


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Three utterances with sound."""
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
    match = re.search(r'id="data">(.*?)</script>', page.read_text(encoding="utf-8"), re.S)
    assert match
    return json.loads(match[1])["utterances"]


def test_an_utterance_that_wav_scp_lacks_does_not_cost_the_report(
    data_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (data_dir / "wav.scp").write_text(f"s1-a {data_dir}/s1-a.wav\n")
    assert ["audio" in utterance for utterance in reported(data_dir)] == [True, False, False]
    assert f"{data_dir}: no audio for 2 of 3 utterances: s2-b, s3-c" in caplog.text


def test_a_segment_of_a_recording_that_wav_scp_lacks_does_not_cost_the_report(
    data_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (data_dir / "segments").write_text("s1-a s1-a 0 0.2\ns2-b lost 0 0.2\ns3-c s1-a 0.2 -1\n")
    assert ["audio" in utterance for utterance in reported(data_dir)] == [True, False, True]
    assert "no audio for 1 of 3 utterances: s2-b" in caplog.text


def test_a_data_directory_of_another_set_is_refused(data_dir: Path) -> None:
    (data_dir / "wav.scp").write_text(f"other {data_dir}/s1-a.wav\n")
    with pytest.raises(UserError, match=re.escape("no audio for any utterance (s1-a, s2-b, s3-c): is it the same set?")):
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
def test_an_empty_recording_is_told_when_sound_is_linked(
    data_dir: Path, pictures: str, caplog: pytest.LogCaptureFixture
) -> None:
    soundfile.write(data_dir / "s2-b.wav", np.zeros(0), 16000)
    assert ["audio" in utterance for utterance in reported(data_dir, "--spectrograms", pictures)] == [True, False, True]
    assert "s2-b.wav: has no samples" in caplog.text
