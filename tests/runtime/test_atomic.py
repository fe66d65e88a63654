"""Files that are written atomically."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from tympan.runtime.atomic import atomic_folder, atomic_write
from tympan.runtime.child import code_command


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


def test_a_device_is_written_and_not_replaced(tmp_path: Path) -> None:
    """`--output /dev/null` as root replaced /dev/null by a file, for all users."""
    device = tmp_path / "null"
    try:
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        device.write_text("x")
    except OSError:
        pytest.skip("needs the permission to make a device")
    with atomic_write(device) as stream:
        stream.write("text")
    assert stat.S_ISCHR(device.stat().st_mode)
    assert list(tmp_path.iterdir()) == [device]


@pytest.mark.skipif(not Path("/dev/stdout").is_symlink(), reason="has no /dev/stdout")
def test_standard_output_is_written_and_not_replaced(tmp_path: Path) -> None:
    code = (
        "from tympan.runtime.atomic import atomic_write\nprint('first', flush=True)\n"
        "for path in ('/dev/stdout', '/dev/fd/1', '/proc/self/fd/1'):\n"
        "    with atomic_write(path) as stream:\n        stream.write(path + chr(10))\n"
    )
    expected = ["first", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"]
    for is_file in (False, True):
        with open(tmp_path / "out", "w") as output:
            where = output if is_file else subprocess.PIPE
            done = subprocess.run(code_command(code), stdout=where, text=True, check=True)
        assert ((tmp_path / "out").read_text() if is_file else done.stdout).splitlines() == expected
        assert Path("/dev/stdout").is_symlink()


def test_a_pipe_is_written_if_somebody_reads_it(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="No such device"), atomic_write(pipe) as stream:
        stream.write("nobody reads")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with atomic_write(pipe) as stream:
        stream.write("text")
    assert os.read(reader, 100) == b"text"
    os.close(reader)
    assert list(tmp_path.iterdir()) == [pipe]
