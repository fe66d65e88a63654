"""Files that a command is given by mistake or in bad faith: one message, and the other utterances go on."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import subprocess
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
import yaml
from train_corpus import PYTHON, environment, run

from tests.faults.damage import damaged
from tests.faults.file_readers import CONFIG, weights
from tympan.data.ark import read_matrix
from tympan.data.audio import MOST_FRAMES_PER_BYTE, AudioError, audio_info, check_audio, read_audio
from tympan.data.folder import read_folder
from tympan.data.lengths import _sources_stamp
from tympan.data.readers import Context, read_value
from tympan.data.table import Table
from tympan.data.validate import validate
from tympan.decode.journal import _mark
from tympan.decode.kenlm_scorer import KenlmFullScorer
from tympan.decode.model_files import ModelFiles
from tympan.decode.pack import pack_model
from tympan.errors import UserError
from tympan.features.cmvn import read_stats
from tympan.features.mvn import GlobalMvn
from tympan.files import explained, open_file, read_json, read_text
from tympan.models.pretrained.cache import _read
from tympan.recipe.fingerprint import Fingerprints
from tympan.runtime.child import module_command
from tympan.training.aggregate import aggregate

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


def test_a_header_without_a_length(tmp_path: Path) -> None:
    """FLAC allows it, for programs that write to a pipe."""
    with pytest.raises(AudioError, match=r"a\.flac: the header does not say how long the recording is, .*convert it"):
        audio_info(lying_flac(tmp_path / "a.flac", 0))


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
    (tmp_path / "wav.scp").write_text(f"a {value or 'none'}\n")
    assert _mark(value, tmp_path).endswith(" is missing") or value.startswith("x.ark:") or not value
    assert _sources_stamp(Table(tmp_path / "wav.scp"), "sound", Context(tmp_path)) == _sources_stamp(
        Table(tmp_path / "wav.scp"), "sound", Context(tmp_path)
    )
    assert Fingerprints(tmp_path / "cache").of_recordings(tmp_path / "wav.scp")


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


@pytest.mark.parametrize(
    "change",
    [{"token_list": 7}, {"non_linguistic_symbols": 7}, {"bpemodel": 7, "token_type": "bpe"}, {"g2p": 7},
     {"normalize": "global_mvn", "normalize_conf": {"stats_file": 7}}],
)  # fmt: skip
def test_a_number_where_a_config_names_a_file(tmp_path: Path, change: dict[str, object]) -> None:
    model = weights("model.pth")(tmp_path)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({**CONFIG, "token_type": "phn", **change}))
    with contextlib.suppress(UserError):  # anything else would be a traceback
        pack_model(ModelFiles(tmp_path / "config.yaml", model), tmp_path / "packed")


def test_transcripts_beside_recordings_must_be_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        soundfile.write(tmp_path / f"{name}.wav", np.zeros(800), RATE_HZ)
    os.mkfifo(tmp_path / "a.txt")
    (tmp_path / "b.txt").write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"a\.txt: is a pipe, but a file is expected\n.*b\.txt: not UTF-8 text"):
        read_folder(tmp_path)


class Trap:
    """Creates a directory when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_arrays_are_never_unpickled(tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    objects = np.array([Trap(sprung), 1, 2], dtype=object)
    npy, npz = tmp_path / "a.npy", tmp_path / "speech_stats.npz"
    np.save(npy, objects, allow_pickle=True)
    np.savez(npz, count=objects, sum=objects, sum_square=objects)
    for name in ("batch_keys", "stats_keys"):
        (tmp_path / name).write_text("speech\n")
    (tmp_path / "speech_shape").write_text("a 1\n")
    for read in (
        lambda: read_value("npy", str(npy), Context(tmp_path)),
        lambda: GlobalMvn(npz),
        lambda: read_stats(npy),
        lambda: aggregate([tmp_path], tmp_path / "out"),
    ):
        with pytest.raises(UserError):
            read()
    assert _read(npy) is None  # of the cache of hidden states
    assert not sprung.exists()
    with np.load(npz, allow_pickle=True) as loaded:
        assert loaded["sum"].size  # the trap works
    assert sprung.exists()


def test_compressed_statistics_do_not_fill_the_memory(tmp_path: Path) -> None:
    zeros = np.zeros(10_000_000)
    np.savez_compressed(tmp_path / "speech_stats.npz", count=np.float64(1), sum=zeros, sum_square=zeros)
    for name in ("batch_keys", "stats_keys"):
        (tmp_path / name).write_text("speech\n")
    (tmp_path / "speech_shape").write_text("a 1\n")
    assert (tmp_path / "speech_stats.npz").stat().st_size < 200_000
    for read in (lambda: GlobalMvn(tmp_path / "speech_stats.npz"), lambda: aggregate([tmp_path], tmp_path / "out")):
        with pytest.raises(UserError, match=r"speech_stats\.npz: damaged.*its arrays have 160,000,\d+ bytes"):
            read()


@pytest.mark.parametrize("seed", [170, 199])
def test_a_binary_file_that_ends_kenlm_is_one_message(tmp_path: Path, seed: int) -> None:
    """Damaged files with which the library reads outside of its memory: when it opens them, and when it scores."""
    pytest.importorskip("kenlm", reason="the extra 'kenlm' is not installed")
    whole = (Path(__file__).parents[1] / "golden" / "kenlm" / "tiny" / "4gram.trie.bin").read_bytes()
    (tmp_path / "a.bin").write_bytes(damaged(whole, random.Random(seed), is_text=False))
    with pytest.raises(UserError, match=r"a\.bin: damaged: KenLM was ended by signal"):
        KenlmFullScorer(tmp_path / "a.bin", ["a", "b"], eos=None, device=torch.device("cpu"))


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
