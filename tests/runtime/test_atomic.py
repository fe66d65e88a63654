"""Files that are written atomically."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tympan.runtime.atomic import atomic_folder, atomic_write


def test_a_failure_leaves_the_old_file_and_no_rest(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError), atomic_write(path, encoding="ascii") as stream:
        stream.write("half 一")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_users_umask_decides_who_may_read(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with atomic_write(tmp_path / "new" / "a.bin", "wb") as stream:
            stream.write(b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new" / "a.bin").stat().st_mode) == 0o640


def fill(target: Path) -> None:
    """Write a folder while another process writes it too."""
    with atomic_folder(target) as folder:
        (folder / "config.yaml").write_text("mine")
        target.mkdir(exist_ok=True)
        (target / "model.bin").write_text("theirs")


@pytest.mark.parametrize("is_there", [True, False])
def test_a_folder_that_another_process_fills_is_not_mixed(tmp_path: Path, is_there: bool) -> None:
    target = tmp_path / "packed"
    if is_there:
        target.mkdir()
    with pytest.raises(FileExistsError, match="another process wrote this folder meanwhile"):
        fill(target)
    assert [path.name for path in tmp_path.iterdir()] == ["packed"]
    assert [path.name for path in target.iterdir()] == ["model.bin"]


def test_a_folder_that_appears_while_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "exists", lambda path: False)
    with pytest.raises(FileExistsError, match="another process wrote this folder meanwhile"):
        fill(tmp_path / "packed")
    assert os.listdir(tmp_path) == ["packed"]
