"""One run at a time in a directory."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tympan.errors import UserError
from tympan.runtime import lock
from tympan.runtime.child import code_command
from tympan.runtime.lock import NAME, directory_lock

HOLD = (
    "import sys, time\nfrom pathlib import Path\nfrom tympan.runtime.lock import directory_lock\n"
    "with directory_lock(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(60)\n"
)


@pytest.fixture
def holder(tmp_path: Path):
    process = subprocess.Popen([*code_command(HOLD), str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def write_lock(directory: Path, **changes: object) -> Path:
    content = {"host": "elsewhere", "pid": 7, "started": "2026-01-02 03:04:05", "run": None, **changes}
    path = directory / NAME
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_the_second_is_refused_and_told_who_is_first(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    with pytest.raises(UserError) as refusal, directory_lock(tmp_path, advice="or use another --output_dir"):
        pytest.fail("two at once")
    message = str(refusal.value)
    assert f"process {holder.pid} on {socket.gethostname()}, started 20" in message
    assert str(tmp_path) in message
    assert message.endswith("stop it; or use another --output_dir.")


def test_the_lock_of_a_killed_process_is_taken_over(
    holder: subprocess.Popen[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    with caplog.at_level(logging.WARNING), directory_lock(tmp_path):
        assert json.loads((tmp_path / NAME).read_text())["pid"] == os.getpid()
    assert f"process {holder.pid} on" in caplog.text
    assert "taking over the lock" in caplog.text
    assert not (tmp_path / NAME).exists()


def test_a_forked_child_does_not_hold_it(tmp_path: Path) -> None:
    """Data workers are forked, and keep running for seconds after their run was killed."""
    code = HOLD.replace("    print('held'", "    import os\n    os.fork() or time.sleep(20)\n    print('held'")
    with subprocess.Popen([*code_command(code), str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        child = next(int(p) for p in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
        process.kill()
        process.wait()
        try:
            with directory_lock(tmp_path):
                pass
        finally:
            os.kill(child, signal.SIGKILL)


def test_the_next_starts_without_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        with directory_lock(tmp_path / "new"):
            pass
    assert caplog.text == ""
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize("content", ["", "{", "null", '{"host": 1}', "\x00" * 50, '{"host": "h", "more": 1}'])
def test_a_damaged_lock_is_no_lock(tmp_path: Path, content: str) -> None:
    (tmp_path / NAME).write_text(content)
    with directory_lock(tmp_path):
        pass


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "SILENT_S", 0.6)
    monkeypatch.setattr(lock, "_POLL_S", 0.05)


@pytest.mark.usefixtures("fast")
def test_another_host_that_works_is_refused(tmp_path: Path) -> None:
    path = write_lock(tmp_path)
    done = threading.Event()

    def beat() -> None:
        while not done.wait(0.1):
            os.utime(path)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with (
            pytest.raises(UserError, match="process 7 on elsewhere, started 2026-01-02 03:04:05"),
            directory_lock(tmp_path),
        ):
            pass
    finally:
        done.set()
        thread.join()
    assert json.loads(path.read_text())["pid"] == 7


@pytest.mark.usefixtures("fast")
def test_another_host_that_is_silent_has_ended(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_lock(tmp_path)
    with directory_lock(tmp_path):
        assert "taking over the lock" in caplog.text


def test_an_old_heartbeat_needs_no_look(tmp_path: Path) -> None:
    path = write_lock(tmp_path)
    os.utime(path, (time.time() - 3600, time.time() - 3600))
    begin = time.monotonic()
    with directory_lock(tmp_path):
        assert time.monotonic() - begin < 1


def test_the_same_run_moves_to_another_host(tmp_path: Path) -> None:
    write_lock(tmp_path, run="torchrun-5")
    begin = time.monotonic()
    with directory_lock(tmp_path, run="torchrun-5"):
        assert time.monotonic() - begin < 1


def test_where_the_system_has_no_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(stream: object, flags: int) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "lockf", refuse)
    write_lock(tmp_path, host=socket.gethostname(), pid=os.getppid())
    with pytest.raises(UserError, match="another run"), directory_lock(tmp_path):
        pass
    write_lock(tmp_path, host=socket.gethostname(), pid=2**22 + 5)
    with directory_lock(tmp_path):
        pass


def test_the_heartbeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "HEARTBEAT_S", 0.05)
    with directory_lock(tmp_path):
        os.utime(tmp_path / NAME, (0, 0))
        deadline = time.monotonic() + 5
        while (tmp_path / NAME).stat().st_mtime == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert (tmp_path / NAME).stat().st_mtime > time.time() - 60


@pytest.mark.parametrize("kind", ["link", "folder", "pipe", "device"])
def test_something_else_under_the_name_of_the_lock(tmp_path: Path, kind: str) -> None:
    """A link in a directory from somebody else must not overwrite its target."""
    precious, place = tmp_path / "precious", tmp_path / "exp" / NAME
    precious.write_text("precious")
    place.parent.mkdir()
    if kind == "folder":
        place.mkdir()
    elif kind == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to(precious if kind == "link" else "/dev/zero")
    with pytest.raises(UserError, match=r"\.lock: is not a file but a link"), directory_lock(place.parent):
        pytest.fail("locked")
    assert precious.read_text() == "precious"
