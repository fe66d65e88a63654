"""Lock a directory, so that two runs do not overwrite each other's files.

The operating system releases the lock of a process that died. Between hosts that share a directory, this does not
always work. So the lock file also contains the holder, which updates the modification time of the file (heartbeat).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from tympan.errors import UserError
from tympan.runtime.atomic import naming
from tympan.runtime.child import is_alive

NAME = ".lock"
HEARTBEAT_S = 15.0
SILENT_S = 90.0
"""A holder on another host has ended if there is no heartbeat for this time. NFS may show times that are 60 s old."""
LONG_SILENT_S = 600.0
"""If the last heartbeat is older than this, the holder has ended: clocks of hosts do not differ that much."""
_POLL_S = 1.0
_MOST_PID = 1 << 31


@dataclass(frozen=True)
class Holder:
    """The process that uses a directory."""

    host: str
    pid: int
    started: str
    run: str | None = None
    """Id of a run that may move to another host. A process of the same run takes the lock without waiting."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, started {self.started}"


@contextmanager
def directory_lock(directory: Path, *, name: str = NAME, run: str | None = None, advice: str = "") -> Iterator[None]:
    """Lock `directory` for this process. Raise UserError, with `advice` added, if another process has the lock."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    own = Holder(socket.gethostname(), os.getpid(), time.strftime("%Y-%m-%d %H:%M:%S"), run)
    stream, is_locked = _open(path, advice)
    try:
        _take_over(path, stream, own, is_locked=is_locked, advice=advice)
        _write_holder(path, stream, own)
        is_done = threading.Event()
        threading.Thread(target=_beat, args=(path, is_done), name="tympan-lock", daemon=True).start()
        try:
            yield
        finally:
            is_done.set()
            path.unlink(missing_ok=True)
    finally:
        stream.close()


def _open(path: Path, advice: str) -> tuple[TextIO, bool]:
    """Return the file, and whether it is locked by the system: some shared filesystems do not support locks."""
    while True:
        stream = _open_own(path)
        try:
            # Unlike flock, it is not inherited by forked processes, which may outlive this one for a moment.
            fcntl.lockf(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            holder = _read(stream)
            stream.close()
            raise _taken(path, holder, advice) from None
        except OSError:
            return stream, False
        try:
            if os.path.samestat(os.fstat(stream.fileno()), path.stat()):
                return stream, True
        except FileNotFoundError:
            pass
        stream.close()  # the holder has just ended and removed the file


def _open_own(path: Path) -> TextIO:
    """Open the lock file. A link is not followed: its target would be overwritten."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise UserError(f"{path}: is not a file but a link, a folder, a pipe or a device. Remove it, then try again")
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o666), "a+", encoding="utf-8", errors="replace")


def _take_over(path: Path, stream: TextIO, own: Holder, *, is_locked: bool, advice: str) -> None:
    """Raise UserError if the holder in the file is active. Log a warning if the holder died."""
    if not path.stat().st_size:
        return
    holder = _read(stream)
    if holder is not None and _is_active(path, holder, own, is_locked=is_locked):
        raise _taken(path, holder, advice)
    logging.warning("%s: the process that created it (%s) has died; taking over the lock", path, holder or "unknown")


def _is_active(path: Path, holder: Holder, own: Holder, *, is_locked: bool) -> bool:
    if holder.host == own.host:
        return not is_locked and holder.pid != own.pid and is_alive(holder.pid)
    if holder.run is not None and holder.run == own.run:
        return False
    last = _heartbeat(path)
    if time.time() - last > LONG_SILENT_S:
        return False
    logging.warning("%s: held by %s; checking for %g s whether it is still running", path, holder, SILENT_S)
    deadline = time.monotonic() + SILENT_S
    while time.monotonic() < deadline:
        time.sleep(_POLL_S)
        if _heartbeat(path) != last:
            return True
    return False


def _write_holder(path: Path, stream: TextIO, own: Holder) -> None:
    try:
        with naming(path):
            stream.truncate(0)
            stream.write(json.dumps(asdict(own)))
            stream.flush()
    except OSError:  # a full disk
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            stream.close()  # tries to write the content of its buffer again
        raise


def _heartbeat(path: Path) -> float:
    # Do not open the file for this: closing it would release the lock of this process.
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _read(stream: TextIO) -> Holder | None:
    stream.seek(0)
    try:
        holder = Holder(**json.loads(stream.read(4096)))
    except (ValueError, TypeError, RecursionError):  # damaged
        return None
    return holder if isinstance(holder.pid, int) and 0 < holder.pid < _MOST_PID else None


def _taken(path: Path, holder: Holder | None, advice: str) -> UserError:
    who = f" ({holder})" if holder is not None else ""
    return UserError(
        f"another run{who} is working in {path.parent.resolve()}. Wait for it, or stop it{advice and f'; {advice}'}."
    )


def _beat(path: Path, is_done: threading.Event) -> None:
    while not is_done.wait(HEARTBEAT_S):
        try:
            os.utime(path)
        except OSError:  # removed by the user, or the filesystem is unavailable: the lock of the system remains
            continue
