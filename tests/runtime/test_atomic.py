"""Files that are written atomically."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tympan.runtime.atomic import atomic_write


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
