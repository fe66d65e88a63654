"""Files that a command is given by mistake or in bad faith: one message, and the other utterances go on."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

import numpy as np
import pytest
import soundfile
from train_corpus import PYTHON, environment, run

from tympan.data.ark import read_matrix
from tympan.data.audio import MOST_FRAMES_PER_BYTE, AudioError, audio_info, check_audio, read_audio
from tympan.data.validate import validate
from tympan.errors import UserError
from tympan.files import explained, open_file, read_json, read_text
from tympan.runtime.child import module_command

RATE_HZ = 16000


def lying_flac(path: Path, frames: int) -> Path:
    """A FLAC of 0.1 s whose header says another number of samples (36 bits from the middle of byte 21)."""
    soundfile.write(path, 0.1 * np.random.default_rng(0).standard_normal(1600), RATE_HZ)
    content = bytearray(path.read_bytes())
    content[21:26] = ((content[21] & 0xF0) << 32 | frames).to_bytes(5, "big")
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("frames", [2**36 - 1, 10_000_000])
def test_a_header_that_lies_about_the_length(tmp_path: Path, frames: int) -> None:
    """256 GiB of memory for a file of 3 kB."""
    path = lying_flac(tmp_path / "a.flac", frames)
    for read in (read_audio, check_audio, lambda source: read_audio(source, channel=0, rate=8000)):
        with pytest.raises(AudioError, match=r"damaged: the header says|truncated: 1600 samples|cannot be decoded"):
            read(path)
    if frames > MOST_FRAMES_PER_BYTE * path.stat().st_size:
        with pytest.raises(AudioError, match="cannot contain"):
            audio_info(path)


def test_silence_may_be_packed_as_tightly_as_flac_can(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.flac", np.zeros(RATE_HZ * 60), RATE_HZ)
    assert len(read_audio(tmp_path / "a.flac").samples) == RATE_HZ * 60


def test_one_bad_recording_is_the_fault_of_its_utterance(tmp_path: Path) -> None:
    lying_flac(tmp_path / "b.flac", 2**36 - 1)
    soundfile.write(tmp_path / "a.flac", np.full(1600, 0.1), RATE_HZ)
    soundfile.write(tmp_path / "c.wav", np.array([0.1, np.nan] * 800), RATE_HZ, subtype="FLOAT")
    os.mkfifo(tmp_path / "d.wav")
    (tmp_path / "e.wav").mkdir()
    names = ("a.flac", "b.flac", "c.wav", "d.wav", "e.wav")
    (tmp_path / "wav.scp").write_text("".join(f"{name} {tmp_path / name}\n" for name in names))
    (tmp_path / "text").write_text("".join(f"{name} x\n" for name in names))
    report = validate(tmp_path)
    assert {fault.key: fault.kind for fault in report.errors} == {
        "b.flac": "unreadable-audio", "c.wav": "not-finite-audio", "d.wav": "unreadable-audio",
        "e.wav": "unreadable-audio",
    }  # fmt: skip
    assert list(report.infos) == ["a.flac"]


def test_a_data_directory_without_utterances(tmp_path: Path) -> None:
    for name in ("wav.scp", "text", "utt2spk"):
        (tmp_path / name).write_text("")
    assert [fault.kind for fault in validate(tmp_path).errors] == ["empty-directory"]


@pytest.mark.parametrize("value", ["a\0.wav", "x.ark:" + "9" * 5000, "x.ark:99999999999", "/".join(["d"] * 1500), ""])
def test_paths_that_can_not_be(tmp_path: Path, value: str) -> None:
    (tmp_path / "x.ark").write_bytes(b"a \0BFM ")
    with pytest.raises(UserError):
        read_audio(value, base=tmp_path)
    with pytest.raises(UserError):
        read_matrix(value or "none", base=tmp_path)


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "socket"))
    for path, message in {
        tmp_path / "pipe": "is a pipe, but a file is expected",
        tmp_path: "is a directory, but a file is expected",
        Path("/dev/zero"): "is a device, but a file is expected",
        tmp_path / "socket": "cannot be read: No such device or address",
        tmp_path / "none": "no such file",
        Path("a\0b"): "contains a NUL character",
    }.items():
        with pytest.raises(UserError, match=message):
            open_file(path)
    server.close()
    (tmp_path / "file").write_bytes(b"a\r\nb\rc")
    (tmp_path / "link").symlink_to("file")
    assert read_text(tmp_path / "link") == "a\nb\nc"


@pytest.mark.parametrize("error", [KeyError("x"), RecursionError(), MemoryError(), EOFError(), OSError(5, "I/O error")])
def test_whatever_reading_raises_is_one_message(error: Exception) -> None:
    message = r"^model\.pth: (damaged, or not a thing|reading it needs more memory|cannot be read)"
    with pytest.raises(UserError, match=message), explained("model.pth", "a thing"):
        raise error


def test_a_full_disk_is_not_blamed_on_the_file_that_is_read() -> None:
    with pytest.raises(OSError, match="No space left"), explained("model.zip", "a zip file"):
        raise OSError(28, "No space left on device", "/cache")


@pytest.mark.parametrize("content", ["", "[1]", "{", "[" * 100_000, "nul"])
def test_damaged_json(tmp_path: Path, content: str) -> None:
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(UserError, match=r"manifest\.json: damaged, or not the manifest of a run"):
        read_json(tmp_path / "manifest.json", "the manifest of a run")


def test_output_for_a_terminal_that_knows_only_ascii(tmp_path: Path) -> None:
    (tmp_path / "ref").write_text("a é è\n", encoding="utf-8")
    (tmp_path / "hyp").write_text("a é x\n", encoding="utf-8")
    line = module_command("tympan.bin.score", ["ref", "hyp", "--alignments", "true", "--output_dir", "out"])
    environment = {**os.environ, "PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(line, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "REF:  \\xe9" in done.stdout
    assert "é" in (tmp_path / "out" / "result.txt").read_text(encoding="utf-8")


@pytest.mark.slow
def test_every_command_survives_a_header_that_lies(beeps: Path, tmp_path: Path) -> None:
    """One FLAC of 3 kB that claims 2**36 samples, among good ones: its utterance fails, or one message names it."""
    exp, data = tmp_path / "exp", tmp_path / "data"
    assert run(beeps, exp, "--max_epoch", "1").returncode == 0
    shutil.copytree(beeps.parent / "valid", data)
    bad = lying_flac(tmp_path / "bad.flac", 2**36 - 1)
    lines = (data / "wav.scp").read_text().splitlines()
    (data / "wav.scp").write_text("\n".join([*lines[:-1], f"{lines[-1].split()[0]} {bad}"]) + "\n")
    (data / "utt2spk").write_text("".join(f"{line.split()[0]} {line.split()[0]}\n" for line in lines))
    name = lines[-1].split()[0]
    speech = f"{data}/wav.scp,speech,sound"
    training = ["--config", str(beeps), "--max_epoch", "1", "--train_data_path_and_name_and_type", speech]
    training += ["--train_data_path_and_name_and_type", f"{data}/text,text,text", "--output_dir"]
    good = lines[0].split()[1]
    commands = {
        "asr_inference": ["--asr_model_file", str(exp / "1epoch.pth"), "--data_path_and_name_and_type", speech,
                          "--output_dir", str(tmp_path / "decoded"), "--beam_size", "1"],
        "transcribe": [str(exp), good, str(bad)],
        "validate_data": [str(data)],
        "asr_train": [*training, str(tmp_path / "train")],
        "asr_train --collect_stats": [*training, str(tmp_path / "stats"), "--collect_stats", "true"],
        "fix_data": [str(data)],  # the last one, because it removes the utterance
    }  # fmt: skip
    for command, arguments in commands.items():
        done = limited(command.split()[0], *arguments)
        assert "Traceback" not in done.stderr, done.stderr[-2000:]
        said = done.stdout + done.stderr
        assert done.returncode in ((0,) if command == "fix_data" else (1, 2)), f"{command}: {said[-1500:]}"
        assert name in said or str(bad) in said, f"{command}: {said[-1500:]}"
    decoded = (tmp_path / "decoded" / "text").read_text().splitlines()
    assert [line.split()[0] for line in decoded] == [line.split()[0] for line in lines[:-1]]
    assert name not in (data / "wav.scp").read_text()


def limited(command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command with 8 GB of address space: much less than the header asks for."""
    line = ["bash", "-c", 'ulimit -v 8000000; exec "$@"', "limited", *PYTHON, f"tympan.bin.{command}", *arguments]
    return subprocess.run(line, env=environment(), capture_output=True, text=True, timeout=200, check=False)
