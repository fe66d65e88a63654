"""Archives that were made to do harm: nothing is written outside, and a small file does not fill the disk."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tympan.decode import zipped
from tympan.decode.zipped import unpacked
from tympan.errors import UserError
from tympan.recipe import extract as unpacking
from tympan.recipe.extract import extract


def tar_of(path: Path, *members: tuple[tarfile.TarInfo, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def member(name: str, *, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def sparse(path: Path) -> Path:
    """A GNU sparse file of 3 GB in one header without any data."""
    block = bytearray(member("big").tobuf(tarfile.GNU_FORMAT))
    block[156:157] = b"S"
    block[386:398] = b"%011o\0" % 0  # one part of length 0
    block[398:410] = b"%011o\0" % 0
    block[483:495] = b"%011o\0" % (3 << 30)
    block[148:156] = b"        "
    block[148:156] = b"%06o\0 " % sum(block)
    path.write_bytes(bytes(block) + bytes(1024))
    return path


def long_header(path: Path, kind: bytes) -> Path:
    """A name or attributes of 64 MB, which shrink to 64 kB."""
    header = member("long", kind=kind)
    header.size = 64 << 20
    with gzip.open(path, "wb", compresslevel=1) as stream:
        stream.write(header.tobuf(tarfile.GNU_FORMAT) + bytes(header.size))
        stream.write(member("a").tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    return path


HARMFUL: dict[str, Callable[[Path], Path]] = {
    "parent": lambda path: tar_of(path, (member("../x"), b"x")),
    "absolute": lambda path: tar_of(path, (member("/tmp/x"), b"x")),
    "backslash": lambda path: tar_of(path, (member("..\\x"), b"x")),
    "drive": lambda path: tar_of(path, (member("C:x"), b"x")),
    "link": lambda path: tar_of(path, (member("a", kind=tarfile.SYMTYPE, link="/etc"), b""), (member("a/x"), b"x")),
    "hard link": lambda path: tar_of(path, (member("a", kind=tarfile.LNKTYPE, link="/etc/passwd"), b"")),
    "pipe": lambda path: tar_of(path, (member("a", kind=tarfile.FIFOTYPE), b"")),
    "device": lambda path: tar_of(path, (member("a", kind=tarfile.CHRTYPE), b"")),
    "deep": lambda path: tar_of(path, (member("/".join(["d"] * 1500)), b"x")),
    "long name": lambda path: tar_of(path, (member("n" * 5000), b"x")),
    "file and directory": lambda path: tar_of(path, (member("a"), b"x"), (member("a/b"), b"x")),
    "sparse": sparse,
    "very long name": lambda path: long_header(path, tarfile.GNUTYPE_LONGNAME),
    "very long link": lambda path: long_header(path, tarfile.GNUTYPE_LONGLINK),
    "attributes": lambda path: long_header(path, tarfile.XHDTYPE),
    "attributes of all": lambda path: long_header(path, tarfile.XGLTYPE),
    "zeros": lambda path: tar_of(path, (member("a"), bytes(3_000_000)), mode="w:xz"),
    "many files": lambda path: tar_of(path, *((member(f"{n}"), b"") for n in range(300))),
}


@pytest.mark.parametrize("kind", HARMFUL)
def test_harmful_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(unpacking, "SMALL_BYTES", 1_000_000)
    monkeypatch.setattr(unpacking, "MOST_FILES", 200)
    archive = HARMFUL[kind](tmp_path / "a.tar")
    with pytest.raises(UserError, match=r"a\.tar"):
        extract(archive, tmp_path / "target")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar", "target"]
    assert list((tmp_path / "target").iterdir()) == []


def test_millions_of_members_are_not_kept(tmp_path: Path) -> None:
    """Each took 1 kB of memory until the end."""
    archive = tar_of(tmp_path / "a.tar", *((member(f"{n % 10}"), b"") for n in range(30_000)))
    tracemalloc.start()
    try:
        extract(archive, tmp_path / "target")
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_an_archive_that_shrank_well_is_unpacked(tmp_path: Path) -> None:
    archive = tar_of(tmp_path / "a.tar", (member("a"), bytes(20_000_000)), mode="w:xz")
    assert extract(archive, tmp_path / "target") == [tmp_path / "target" / "a"]


def test_a_deep_zip_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("meta.yaml", "files: {}")
        archive.writestr("/".join(["d"] * 1500), "x")
    with pytest.raises(UserError, match="folders are nested more than"):
        unpacked(tmp_path / "a.zip")
    assert not (tmp_path / "cache").exists()


def test_a_zip_of_too_many_files_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(zipped, "MOST_FILES", 20)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("meta.yaml", "files: {}")
        for number in range(20):
            archive.writestr(f"{number}", "")
    with pytest.raises(UserError, match="too much for a model"):
        unpacked(tmp_path / "a.zip")
    assert not (tmp_path / "cache").exists()


def test_the_limits_are_those_of_the_security_policy() -> None:
    policy = (Path(__file__).parents[2] / "SECURITY.md").read_text(encoding="utf-8")
    packed = (
        f"at most {zipped.MOST_BYTES >> 30} GiB, {zipped.MOST_FILES:,} files and {zipped.MOST_RATIO} times the size"
    )
    corpus = (
        f"{unpacking.SMALL_BYTES // 10**6} MB plus {unpacking.MOST_RATIO} times its size, to "
        f"{unpacking.MOST_FILES:,} files and to {unpacking.MOST_DEPTH} directories"
    )
    assert unpacking.MOST_NAME_BYTES == 1 << 20
    assert "names and attributes of up to 1 MiB" in policy
    assert packed in policy
    assert corpus in policy


def test_a_pipe_is_no_archive(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.tar")
    with pytest.raises(UserError, match="is a pipe, but a file is expected"):
        extract(tmp_path / "a.tar", tmp_path / "target")
