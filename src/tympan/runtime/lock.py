"""One run at a time in a directory: two would overwrite each other's files.

The system frees the lock of a process that died. Where hosts share a directory, that is not certain to work between
them: so the file also names its holder, whose heartbeat is the time of the file's last change.
"""

from __future__ import annotations

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
from tympan.runtime.child import is_alive

NAME = ".lock"
HEARTBEAT_S = 15.0
SILENT_S = 90.0
"""A holder on another host that gives no heartbeat for so long while we look has ended. NFS may show a time of 60 s
ago."""
LONG_SILENT_S = 600.0
"""So old a heartbeat needs no look: clocks of hosts don't differ that much."""
_POLL_S = 1.0


@dataclass(frozen=True)
class Holder:
    """Who works in a directory."""

    host: str
    pid: int
    started: str
    run: str | None = None
    """Of a run that may move to another host: its processes follow each other without waiting."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, started {self.started}"


@contextmanager
def directory_lock(directory: Path, *, name: str = NAME, run: str | None = None, advice: str = "") -> Iterator[None]:
    """Inside, no other process works in `directory`. UserError if one does; `advice` says what else could be done."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    own = Holder(socket.gethostname(), os.getpid(), time.strftime("%Y-%m-%d %H:%M:%S"), run)
    stream, is_locked = _open(path, advice)
    try:
        _take_over(path, stream, own, is_locked=is_locked, advice=advice)
        stream.truncate(0)
        stream.write(json.dumps(asdict(own)))
        stream.flush()
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
    """The file, and whether the system could lock it: some shared filesystems can't."""
    while True:
        stream = path.open("a+", encoding="utf-8", errors="replace")
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
        stream.close()  # its holder has just ended and removed it


def _take_over(path: Path, stream: TextIO, own: Holder, *, is_locked: bool, advice: str) -> None:
    """Check that nobody holds what could be locked; a holder that died is reported."""
    if not path.stat().st_size:
        return
    holder = _read(stream)
    if holder is not None and _is_active(path, holder, own, is_locked=is_locked):
        raise _taken(path, holder, advice)
    logging.warning("%s: its holder (%s) ended without removing it; taking it over", path, holder or "unknown")


def _is_active(path: Path, holder: Holder, own: Holder, *, is_locked: bool) -> bool:
    if holder.host == own.host:
        return not is_locked and holder.pid != own.pid and is_alive(holder.pid)
    if holder.run is not None and holder.run == own.run:
        return False
    last = _heartbeat(path)
    if time.time() - last > LONG_SILENT_S:
        return False
    logging.warning("%s: held by %s; looking for %g s whether it still works", path, holder, SILENT_S)
    deadline = time.monotonic() + SILENT_S
    while time.monotonic() < deadline:
        time.sleep(_POLL_S)
        if _heartbeat(path) != last:
            return True
    return False


def _heartbeat(path: Path) -> float:
    # The file must not be opened for this: closing it would free this process's lock.
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _read(stream: TextIO) -> Holder | None:
    stream.seek(0)
    try:
        return Holder(**json.loads(stream.read(4096)))
    except (ValueError, TypeError):
        return None


def _taken(path: Path, holder: Holder | None, advice: str) -> UserError:
    who = f" ({holder})" if holder is not None else ""
    return UserError(
        f"another run{who} is working in {path.parent.resolve()}. Wait for it, or stop it{advice and f'; {advice}'}."
    )


def _beat(path: Path, is_done: threading.Event) -> None:
    while not is_done.wait(HEARTBEAT_S):
        try:
            os.utime(path)
        except OSError:  # removed by hand, or the filesystem is away: the system's lock remains
            continue
