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
