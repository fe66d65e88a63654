"""A full or read-only disk is reported in one message, with exit code 2."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from tympan.bin.main import cli, run
from tympan.runtime.atomic import atomic_write


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT])
def test_a_full_disk_gives_no_traceback(code: int, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(_argv: Sequence[str] | None) -> int:
        raise OSError(code, os.strerror(code), "/data/x.ark")

    assert run(fail) == 2
    assert f"tympan: error: /data/x.ark: {os.strerror(code)}" in capsys.readouterr().err


def test_a_folder_where_a_file_belongs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(_argv: Sequence[str] | None) -> int:
        with atomic_write(tmp_path) as stream:
            stream.write("x")
        return 0

    assert run(fail) == 2
    assert capsys.readouterr().err == f"tympan: error: {tmp_path}: Is a directory\n"


def test_a_directory_that_cannot_be_created(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text("a x\n")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    places = [tmp_path / "text" / "below", tmp_path / "loop" / "below", tmp_path / ("x" * 300)]
    places += [Path("/proc/nowhere")] if Path("/proc").exists() else []
    for place in places:
        for command in (["score", "--output_dir", str(place)], ["report", "--output", str(place / "report.html")]):
            assert cli([*command, str(tmp_path / "text"), str(tmp_path / "text")]) == 2
            message = capsys.readouterr().err
            assert message.startswith("tympan: error: ")
            assert message.count("\n") == 1


def test_a_missing_file_of_symbols(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text("a x\n")
    text = str(tmp_path / "text")
    assert cli(["score", text, text, "--non_linguistic_symbols", "nofile"]) == 2
    assert capsys.readouterr().err == "tympan: error: nofile: no such file\n"


def test_other_system_errors_are_ours() -> None:
    def fail(_argv: Sequence[str] | None) -> int:
        raise OSError(errno.EIO, "input/output error")

    with pytest.raises(OSError, match="input/output"):
        run(fail)
