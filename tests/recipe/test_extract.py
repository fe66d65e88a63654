"""Unpacking: untrusted archives stay inside the target, and an interrupted one never looks complete."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tympan.errors import UserError
from tympan.recipe.extract import extract, extract_nested


def make_tar(path: Path, *members: tuple[str, bytes | str]) -> Path:
    """Members are (name, bytes) for a file and (name, kind) for anything else."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
            else:
                kind, _, info.linkname = content.partition(":")
                info.type = {
                    "dir": tarfile.DIRTYPE,
                    "sym": tarfile.SYMTYPE,
                    "hard": tarfile.LNKTYPE,
                    "fifo": tarfile.FIFOTYPE,
                    "device": tarfile.CHRTYPE,
                }[kind]
                tar.addfile(info)
    return path


def files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_files_and_directories(tmp_path: Path) -> None:
    archive = make_tar(tmp_path / "a.tgz", ("top", "dir"), ("top/x", b"1"), ("./top/deep/y", b"2"))
    assert extract(archive, tmp_path / "out") == [tmp_path / "out" / "top"]
    assert files(tmp_path / "out") == {"top/x": b"1", "top/deep/y": b"2"}


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (("../evil", b"x"), "points outside"),
        (("/evil", b"x"), "points outside"),
        (("top/../../evil", b"x"), "points outside"),
        (("top/link", "sym:/etc/passwd"), "is a link"),
        (("top/link", "hard:top/x"), "is a link"),
        (("top/pipe", "fifo"), "device or pipe"),
        (("top/null", "device"), "device or pipe"),
    ],
)
def test_unsafe_members_are_rejected(tmp_path: Path, member: tuple[str, bytes | str], message: str) -> None:
    archive = make_tar(tmp_path / "in" / "a.tgz", ("top/x", b"1"), member)
    with pytest.raises(UserError, match=message):
        extract(archive, tmp_path / "in" / "out")
    assert files(tmp_path / "in" / "out") == {}
    assert not (tmp_path / "evil").exists()
    assert not (tmp_path / "in" / "evil").exists()


@pytest.mark.parametrize(
    "spoil", [lambda data: data[:-2000], lambda data: data[:5000] + b"\0" * 50 + data[5050:], lambda data: b"no tar"]
)
def test_damaged_archive_leaves_nothing(tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    import random

    noise = random.Random(0).randbytes(20_000)
    archive = make_tar(tmp_path / "a.tgz", ("top/x", b"1"), ("top/y", noise))
    archive.write_bytes(spoil(archive.read_bytes()))
    with pytest.raises(UserError, match=r"a\.tgz \([\d,]+ bytes\) is damaged or truncated"):
        extract(archive, tmp_path / "out")
    assert files(tmp_path / "out") == {}


def test_again_is_the_same_and_a_killed_run_is_cleaned_up(tmp_path: Path) -> None:
    archive = make_tar(tmp_path / "a.tgz", ("top/x", b"1"), ("top/y", b"2"))
    left = tmp_path / "out" / ".extracting-a.tgz" / "top"
    left.mkdir(parents=True)
    (left / "stale").write_text("half")
    extract(archive, tmp_path / "out")
    extract(archive, tmp_path / "out")
    assert files(tmp_path / "out") == {"top/x": b"1", "top/y": b"2"}


def test_nested_speakers_merge_and_go(tmp_path: Path) -> None:
    wav = tmp_path / "wav"
    for speaker in ("S0001", "S0002", "S0003"):
        make_tar(
            wav / f"{speaker}.tar.gz", (f"train/{speaker}/a.wav", speaker.encode()), (f"dev/{speaker}/b.wav", b"d")
        )
    assert extract_nested(wav, nj=2) == 3
    assert files(wav) == {
        **{f"train/{speaker}/a.wav": speaker.encode() for speaker in ("S0001", "S0002", "S0003")},
        **{f"dev/{speaker}/b.wav": b"d" for speaker in ("S0001", "S0002", "S0003")},
    }
    assert extract_nested(wav, nj=2) == 0


def test_nested_damaged_speaker_stays_for_the_next_run(tmp_path: Path) -> None:
    wav = tmp_path / "wav"
    make_tar(wav / "S0001.tar.gz", ("train/S0001/a.wav", b"1"))
    make_tar(wav / "S0002.tar.gz", ("train/S0002/a.wav", b"2"))
    (wav / "S0002.tar.gz").write_bytes((wav / "S0002.tar.gz").read_bytes()[:-30])
    with pytest.raises(UserError, match=r"S0002\.tar\.gz"):
        extract_nested(wav, nj=1)
    assert (wav / "S0002.tar.gz").exists()
    assert not (wav / "train" / "S0002").exists()
