"""Copy, combine, subset and speed-perturb data directories."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tympan.bin import combine_data, copy_data, perturb_data, subset_data
from tympan.data.audio import audio_info, read_audio
from tympan.data.kaldi_dir import DataDir, read_table
from tympan.data.validate import validate
from tympan.errors import UserError

RATE = 16000


def tone(hz: float, seconds: float) -> np.ndarray:
    return 0.3 * np.sin(2 * np.pi * hz * np.arange(int(RATE * seconds)) / RATE)


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """Six utterances of two speakers, each a tenth of a second longer than the one before."""
    directory = tmp_path / "whole"
    directory.mkdir()
    ids = [f"{speaker}-{number}" for speaker in ("a", "b") for number in range(3)]
    for number, key in enumerate(reversed(ids)):
        soundfile.write(directory / f"{key}.wav", tone(400, 0.2 + 0.1 * number), RATE)
    DataDir(
        directory,
        {
            "wav.scp": {key: str(directory / f"{key}.wav") for key in ids},
            "text": {key: f"text {key}" for key in ids},
            "utt2spk": {key: key[0] for key in ids},
            "spk2gender": {"a": "f", "b": "m"},
            "utt2dur": {key: f"{0.2 + 0.1 * number:.1f}" for number, key in enumerate(reversed(ids))},
        },
    ).write(directory)
    return directory


@pytest.fixture
def cut(tmp_path: Path) -> Path:
    """Two utterances that are segments of one recording."""
    directory = tmp_path / "cut"
    directory.mkdir()
    soundfile.write(directory / "r.wav", np.concatenate([tone(300, 1), tone(600, 1)]), RATE)
    DataDir(
        directory,
        {
            "wav.scp": {"r": str(directory / "r.wav")},
            "segments": {"c-1": "r 0 1", "c-2": "r 1 2"},
            "text": {"c-1": "low", "c-2": "high"},
            "utt2spk": {"c-1": "c", "c-2": "c"},
        },
    ).write(directory)
    return directory


def test_copy_with_prefixes(whole: Path, cut: Path, tmp_path: Path) -> None:
    copy_data.main(
        [str(whole), str(tmp_path / "out"), "--utt_prefix", "x-", "--spk_prefix", "x-", "--utt_suffix", "-y"]
    )
    data = DataDir.read(tmp_path / "out")
    assert data.utt2spk["x-a-0-y"] == "x-a"
    assert data.wav["x-a-0-y"] == str(whole / "a-0.wav")
    assert data.tables["spk2gender"] == {"x-a": "f", "x-b": "m"}
    assert validate(tmp_path / "out").errors == []
    copy_data.main([str(cut), str(tmp_path / "cut2"), "--utt_prefix", "x-", "--spk_prefix", "x-"])
    assert (tmp_path / "cut2" / "segments").read_text() == "x-c-1 r 0 1\nx-c-2 r 1 2\n"
    assert validate(tmp_path / "cut2").errors == []


def test_combine(whole: Path, cut: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert combine_data.main([str(tmp_path / "out"), str(whole), str(cut)]) == 0
    assert "skipped files that some directories lack: spk2gender, utt2dur" in capsys.readouterr().out
    data = DataDir.read(tmp_path / "out")
    assert len(data.utterances) == 8
    assert data.tables["segments"]["a-0"] == "a-0 0 -1"
    assert validate(tmp_path / "out").errors == []


def test_clashing_ids_are_refused(whole: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    data = DataDir.read(whole)
    DataDir(whole, {**data.tables, "text": {**data.text, "a-1": "other words"}}).write(other)
    with pytest.raises(UserError, match=r"other/text: 'a-1' has another value.*\n`tympan copy_data --utt_prefix"):
        combine_data.main([str(tmp_path / "out"), str(whole), str(other)])
    assert combine_data.main([str(tmp_path / "out"), str(whole), str(whole)]) == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--number", "3"], ["a-0", "a-2", "b-1"]),
        (["--number", "2", "--how", "first"], ["a-0", "a-1"]),
        (["--number", "2", "--how", "last"], ["b-1", "b-2"]),
        (["--number", "2", "--how", "shortest"], ["b-1", "b-2"]),
        (["--number", "1", "--how", "per_speaker"], ["a-0", "b-0"]),
        (["--number", "99"], ["a-0", "a-1", "a-2", "b-0", "b-1", "b-2"]),
    ],
)
def test_subset_by_number(whole: Path, tmp_path: Path, arguments: list[str], expected: list[str]) -> None:
    subset_data.main([str(whole), str(tmp_path / "out"), *arguments])
    data = DataDir.read(tmp_path / "out")
    assert data.utterances == list(data.text) == expected
    assert validate(tmp_path / "out").errors == []


def test_random_and_listed_subsets(whole: Path, tmp_path: Path) -> None:
    chosen = []
    for seed in ("1", "1", "2"):
        subset_data.main([str(whole), str(tmp_path / "out"), "--number", "3", "--how", "random", "--seed", seed])
        chosen.append(tuple(read_table(tmp_path / "out" / "wav.scp")))
    assert chosen[0] == chosen[1] != chosen[2]
    (tmp_path / "list").write_text("a-1 ignored\nb-2\nghost\n")
    subset_data.main([str(whole), str(tmp_path / "out"), "--utt_list", str(tmp_path / "list")])
    assert list(read_table(tmp_path / "out" / "wav.scp")) == ["a-1", "b-2"]
    (tmp_path / "list").write_text("b\n")
    subset_data.main([str(whole), str(tmp_path / "out"), "--spk_list", str(tmp_path / "list")])
    assert list(read_table(tmp_path / "out" / "utt2spk")) == ["b-0", "b-1", "b-2"]
    with pytest.raises(UserError, match="one of --number, --utt_list and --spk_list"):
        subset_data.main([str(whole), str(tmp_path / "out")])


def peak_hz(path: str, **part: float) -> float:
    audio = read_audio(path, **part)  # type: ignore[arg-type]
    spectrum = np.abs(np.fft.rfft(audio.samples * np.hanning(len(audio.samples)), 1 << 16))
    return float(np.argmax(spectrum)) * audio.rate / (1 << 16)


@pytest.mark.parametrize("nj", ["1", "2"])
def test_speed_perturbation(whole: Path, tmp_path: Path, nj: str) -> None:
    out = tmp_path / "sp"
    assert perturb_data.main([str(whole), str(out), "--nj", nj]) == 0
    data = DataDir.read(out)
    assert len(data.utterances) == 18
    assert data.utterances == sorted(
        f"sp{speed}-{key}" for speed in (0.9, 1.0, 1.1) for key in read_table(whole / "text")
    )
    assert data.utt2spk["sp0.9-a-0"] == "sp0.9-a"
    assert data.text["sp1.1-b-2"] == "text b-2"
    assert data.tables["utt2uniq"]["sp0.9-a-0"] == "a-0"
    assert data.wav["sp1.0-a-0"] == str(whole / "a-0.wav")
    for speed in (0.9, 1.1):
        source = data.wav[f"sp{speed}-a-0"]
        assert audio_info(source).frames == pytest.approx(0.7 * RATE / speed, abs=1)
        assert peak_hz(source) == pytest.approx(400 * speed, abs=2)
    assert validate(out).errors == []


def test_perturbing_again_writes_nothing_new(whole: Path, tmp_path: Path) -> None:
    arguments = [str(whole), str(tmp_path / "sp"), "--speeds", "1.0", "1.1", "--prefix_unperturbed", "false"]
    perturb_data.main(arguments)
    files = {path: path.stat().st_ctime_ns for path in (tmp_path / "sp" / "audio").rglob("*.flac")}
    assert len(files) == 6
    lost = min(files)
    lost.unlink()
    perturb_data.main(arguments)
    assert {path for path, stamp in files.items() if path.stat().st_ctime_ns != stamp} == {lost}
    assert "a-0" in read_table(tmp_path / "sp" / "wav.scp")
    assert "sp1.1-a-0" in read_table(tmp_path / "sp" / "wav.scp")


def test_a_source_of_another_date_is_perturbed_anew(whole: Path, tmp_path: Path) -> None:
    """An older date counts as a change too, because an earlier version may have been restored."""
    arguments = [str(whole), str(tmp_path / "sp"), "--speeds", "1.1"]
    perturb_data.main(arguments)
    soundfile.write(whole / "a-0.wav", tone(800, 0.7), RATE)
    os.utime(whole / "a-0.wav", (1, 1))
    perturb_data.main(arguments)
    assert peak_hz(DataDir.read(tmp_path / "sp").wav["sp1.1-a-0"]) == pytest.approx(880, abs=2)


def test_ids_that_differ_by_a_slash_have_files_of_their_own(whole: Path, tmp_path: Path) -> None:
    ids = {"a/b": "a-0", "a_b": "a-1", "a%2Fb": "a-2"}
    DataDir(whole, {"wav.scp": {key: str(whole / f"{name}.wav") for key, name in ids.items()}}).write(whole)
    perturb_data.main([str(whole), str(tmp_path / "sp"), "--speeds", "1.1"])
    wav = DataDir.read(tmp_path / "sp").wav
    assert len(set(wav.values())) == 3
    for key, name in ids.items():
        assert audio_info(wav[f"sp1.1-{key}"]).frames == pytest.approx(
            audio_info(str(whole / f"{name}.wav")).frames / 1.1, abs=1
        )


def test_segments_are_perturbed_with_their_recording(cut: Path, tmp_path: Path) -> None:
    perturb_data.main([str(cut), str(tmp_path / "sp"), "--speeds", "1.1", "--audio_format", "wav"])
    data = DataDir.read(tmp_path / "sp")
    segment = data.segments["sp1.1-c-2"]
    assert segment.recording == "sp1.1-r"
    assert (segment.start_s, segment.end_s) == (pytest.approx(1 / 1.1), pytest.approx(2 / 1.1))
    source = data.wav["sp1.1-r"]
    assert source.endswith(".wav")
    assert peak_hz(source, start_s=segment.start_s, end_s=segment.end_s or 0) == pytest.approx(660, abs=2)
    assert validate(tmp_path / "sp").errors == []


def test_speeds_that_make_no_sense(whole: Path, tmp_path: Path) -> None:
    for speeds in (["0"], ["0.9", "0.9"]):
        with pytest.raises(UserError, match="--speeds"):
            perturb_data.main([str(whole), str(tmp_path / "sp"), "--speeds", *speeds])
