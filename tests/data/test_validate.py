"""Every kind of fault is found with its file and line, and fixed if possible."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tympan.bin import fix_data, validate_data
from tympan.data.kaldi_dir import DataDir, read_table
from tympan.data.validate import validate
from tympan.errors import UserError

IDS = [f"s{number // 3}-u{number}" for number in range(9)]


@pytest.fixture
def good(tmp_path: Path) -> Path:
    directory = tmp_path / "data"
    directory.mkdir()
    for key in IDS:
        soundfile.write(directory / f"{key}.flac", np.random.default_rng(0).normal(0, 0.1, 3200), 16000)
    DataDir(
        directory,
        {
            "wav.scp": {key: str(directory / f"{key}.flac") for key in IDS},
            "text": {key: f"text {key}" for key in IDS},
            "utt2spk": {key: key[:2] for key in IDS},
            "utt2dur": dict.fromkeys(IDS, "0.2"),
        },
    ).write(directory)
    return directory


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_good_directory_has_no_faults(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert validate_data.main([str(good), "--nj", "2"]) == 0
    assert f"{good}: 9 utterances, 3 speakers, 0.00 h of audio at 16000 Hz: no faults" in capsys.readouterr().out
    before = {path: path.read_bytes() for path in good.iterdir()}
    assert fix_data.main([str(good)]) == 0
    assert "nothing to fix" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in good.iterdir()} == before


def test_every_kind_of_fault_in_one_pass(good: Path) -> None:
    (good / "text").write_text(
        "s0-u0 fine\ns0-u1\ns0-u1 again\ns1-u3 early\ns0-u2 late\r\n\ns1-u4 x\ns1-u5 x\ns2-u6 x\ns2-u7 x\ns9-u9 ghost\n"
    )
    (good / "utt2spk").write_text("".join(f"{key} {key[:2]}\n" for key in IDS[:8]) + "s2-u8 s2 extra\n")
    edit(good / "utt2dur", "s0-u2 0.2", "s0-u2 0.9")
    edit(good / "utt2dur", "s0-u1 0.2", "s0-u1 long")
    (good / "s0-u0.flac").unlink()
    (good / "s1-u3.flac").write_bytes((good / "s1-u3.flac").read_bytes()[:2000])
    (good / "s1-u4.flac").write_bytes(b"no audio")
    soundfile.write(good / "s1-u5.flac", np.zeros(1600), 8000)
    edit(good / "wav.scp", str(good / "s2-u6.flac"), f"cat {good}/s2-u6.flac |")
    found = [str(fault).removeprefix(f"{good}/") for fault in validate(good).faults]
    expected = [
        "text:2: utterance 's0-u1' has no text",
        "text:3: 's0-u1' appears twice, first on line 2",
        "text:5: 's0-u2' comes after 's1-u3'; ids must be in the order of `LC_ALL=C sort`",
        "text:5: the line ends with a carriage return (probably written on Windows)",
        "text:6: the line is empty",
        "text:11: utterance 's9-u9' is not in wav.scp",
        "utt2dur:2: the duration of 's0-u1' is 'long', expected a number of seconds",
        "utt2dur:3: 's0-u2' has 0.9 s here, but its audio has 0.200 s",
        "utt2spk:9: expected 'UTTERANCE SPEAKER', found 3 columns",
        f"wav.scp:1: 's0-u0': {good}/s0-u0.flac: there is no such file",
        "wav.scp:2: utterance 's0-u1' is not in utt2dur",
        "wav.scp:6: recording 's1-u5' has 8000 Hz, but 4 of 5 have 16000 Hz",
        f"wav.scp:7: 's2-u6' would run a command; pass --allow_pipes true if you trust it: 'cat {good}/s2-u6.flac |'",
        "wav.scp:9: utterance 's2-u8' is not in text",
        "wav.scp:9: utterance 's2-u8' is not in utt2spk",
        "spk2utt:3: the utterances of speaker 's2' differ from utt2spk",
    ]
    for line in expected:
        assert line in found, line
        found.remove(line)
    rest = [line for line in found if "s1-u3" in line or "s1-u4" in line]
    assert len(rest) == 2
    assert rest[0].startswith(f"wav.scp:4: 's1-u3': {good}/s1-u3.flac: ")
    assert rest[1].startswith(f"wav.scp:5: 's1-u4': {good}/s1-u4.flac: cannot be decoded")
    assert sorted(rest) == sorted(found)


def test_segments_and_archives(good: Path) -> None:
    (good / "segments").write_text("s0-a s0-u0 0 0.1\ns0-b s0-u0 0.1 5\ns0-c gone 0 0.1\ns0-d s0-u0 0.2\n")
    (good / "feats.scp").write_text(f"s0-a {good}/none.ark:5\ns0-b {good}/s0-u0.flac:999999\ns0-c evil |\n")
    for name in ("text", "utt2spk", "spk2utt", "utt2dur"):
        (good / name).unlink()
    messages = [str(fault).removeprefix(f"{good}/") for fault in validate(good).errors]
    assert "segments:2: 's0-b' ends at 5 s, but recording 's0-u0' ends at 0.2 s" in messages
    assert "segments:3: recording 'gone' of utterance 's0-c' is not in wav.scp" in messages
    assert "segments:4: expected 'RECORDING START END', found 's0-u0 0.2'" in messages
    assert f"feats.scp:1: 's0-a': there is no such file: {good}/none.ark" in messages
    assert f"feats.scp:2: 's0-b': {good}/s0-u0.flac ends before byte 999999" in messages
    assert "feats.scp:3: 's0-c' would run a command: 'evil |'" in messages


def test_many_faults_are_counted_and_reported_to_a_file(
    good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (good / "text").write_text("".join(f"{key}\n" for key in IDS))
    assert validate_data.main([str(good), "--show", "2", "--report", str(tmp_path / "all")]) == 1
    output = capsys.readouterr().out
    assert output.count("has no text") == 2
    assert "... and 7 more of kind 'empty-text'" in output
    assert f"tympan fix_data {good}" in output
    assert len((tmp_path / "all").read_text().splitlines()) == 9


def test_fix_sorts_drops_and_keeps_a_copy(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (good / "wav.scp").read_text().splitlines(keepends=True)
    (good / "wav.scp").write_text("".join([*reversed(lines), lines[0]]))
    edit(good / "text", "s0-u1 text s0-u1", "s0-u1")
    edit(good / "text", "s1-u3 text s1-u3\n", "")
    (good / "s2-u8.flac").unlink()
    (good / "s2-u7.flac").write_bytes((good / "s2-u7.flac").read_bytes()[:2000])
    old = {name: (good / name).read_bytes() for name in ("wav.scp", "text", "utt2spk", "spk2utt", "utt2dur")}
    assert fix_data.main([str(good)]) == 0
    output = capsys.readouterr().out
    assert "dropped 's0-u1': it has no text" in output
    assert "dropped 's1-u3': it is in wav.scp but not in text" in output
    assert re.search(r"dropped 's2-u8': (?!'s2-u8')", output)
    assert "kept 5 utterances, dropped 4; fixed lines: 1 duplicate, 8 unsorted" in output
    assert {name: (good / ".backup" / name).read_bytes() for name in old} == old
    assert sorted(read_table(good / ".backup" / "dropped")) == ["s0-u1", "s1-u3", "s2-u7", "s2-u8"]
    assert list(read_table(good / "wav.scp")) == ["s0-u0", "s0-u2", "s1-u4", "s1-u5", "s2-u6"]
    assert read_table(good / "spk2utt") == {"s0": "s0-u0 s0-u2", "s1": "s1-u4 s1-u5", "s2": "s2-u6"}
    assert validate_data.main([str(good)]) == 0
    # A second copy does not replace the first.
    edit(good / "text", "s0-u0 text s0-u0\n", "")
    fix_data.main([str(good)])
    assert (good / ".backup.1").is_dir()
    assert (good / ".backup" / "text").read_bytes() == old["text"]


def test_a_file_from_windows_loses_nothing(good: Path) -> None:
    text = (good / "text").read_text()
    (good / "text").write_bytes(text.replace("\n", "\r\n").encode("utf-8-sig"))
    assert validate(good).kinds() == {"byte-order-mark": 1, "carriage-return": 9}
    assert fix_data.main([str(good)]) == 0
    assert (good / "text").read_text() == text


def test_a_directory_is_not_mended_to_nothing(good: Path) -> None:
    (good / "text").write_text("".join(f"{key}\n" for key in IDS))
    before = sorted(good.iterdir())
    with pytest.raises(UserError, match="no utterance would remain, so nothing was changed"):
        fix_data.main([str(good)])
    assert sorted(good.iterdir()) == before
    assert len(read_table(good / "wav.scp")) == len(IDS)


def test_files_about_speakers_and_empty_files(good: Path) -> None:
    (good / "spk2utt").write_text("s0 s0-u0 s0-u1 s0-u2\ns1 s1-u3 s1-u4 s1-u5\n")
    (good / "spk2gender").write_text("s0 m\ns9 f\n")
    (good / "utt2lang").touch()
    messages = [str(fault).removeprefix(f"{good}/") for fault in validate(good).faults]
    assert "utt2spk:7: speaker 's2' is not in spk2utt" in messages
    assert "spk2gender:2: speaker 's9' is not in utt2spk" in messages
    assert "utt2spk:7: warning: speaker 's2' is not in spk2gender" in messages
    assert fix_data.main([str(good)]) == 0
    assert validate(good).errors == []
    assert len(read_table(good / "wav.scp")) == 9
    assert read_table(good / "spk2gender") == {"s0": "m"}
    assert not (good / "utt2lang").exists()
    assert (good / ".backup" / "utt2lang").exists()


def test_what_can_not_be_mended_is_said(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    soundfile.write(good / "s1-u5.flac", np.zeros(1600), 8000)
    assert fix_data.main([str(good)]) == 1
    assert "has 8000 Hz, but 8 of 9 have 16000 Hz" in capsys.readouterr().out
    edit(good / "wav.scp", str(good / "s2-u6.flac"), "cat x |")
    with pytest.raises(UserError, match="would run a command"):
        fix_data.main([str(good)])


def test_no_directory_and_no_data(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such data directory"):
        validate(tmp_path / "none")
    with pytest.raises(UserError, match=r"neither wav\.scp nor feats\.scp"):
        validate(tmp_path)


def test_real_corpus(real_data: Path) -> None:
    report = validate(real_data / "an4" / "train_dev")
    assert report.errors == []
    assert len(report.infos) == 100


def test_stereo_recordings_are_reported(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    noise = np.random.default_rng(1).normal(0, 0.1, (3200, 2))
    for key in IDS[:3]:
        soundfile.write(good / f"{key}.flac", noise, 16000)
    soundfile.write(good / f"{IDS[3]}.flac", noise[:, [0, 0]], 16000)
    assert validate_data.main([str(good)]) == 0
    said = capsys.readouterr().out
    assert "recording 's0-u0' has 2 channels, but 5 of 9 have 1 channels" in said
    assert (
        "the channels of 3 of 4 multi-channel recordings differ, such as those of 's0-u0'; training and decoding use "
        "their mean. To use channel N only, counted from 0, add 'channel: N' to the training configuration"
    ) in said
    assert "0.00 h of audio at 16000 Hz, 1 or 2 channels: 4 channels, 1 different-channels" in said
