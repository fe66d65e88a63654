"""Write files and folders atomically: to a temporary path in the same folder, which is flushed and then renamed."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import shutil
import socket
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal, TextIO, overload

from tympan.runtime.child import is_alive


@overload
def atomic_write(
    path: str | os.PathLike[str], mode: Literal["w"] = "w", *, encoding: str = "utf-8"
) -> AbstractContextManager[TextIO]: ...


@overload
def atomic_write(path: str | os.PathLike[str], mode: Literal["wb"]) -> AbstractContextManager[BinaryIO]: ...


def atomic_write(
    path: str | os.PathLike[str], mode: Literal["w", "wb"] = "w", *, encoding: str = "utf-8"
) -> AbstractContextManager[IO[Any]]:
    """Open a temporary file next to `path`. It is renamed to `path` if the block succeeds, and removed if it fails.

    A pipe or a device such as /dev/stdout is written directly.
    """
    return _atomic_write(Path(path), mode, encoding)


@contextmanager
def _atomic_write(target: Path, mode: str, encoding: str) -> Iterator[IO[Any]]:
    if _is_stream(target):
        with (
            naming(target),
            os.fdopen(_open_stream(target), mode, encoding=None if "b" in mode else encoding) as stream,
        ):
            yield stream
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_once(os.path.abspath(target.parent))
    temporary = _neighbour(target)
    # Not mkstemp: its files are readable only by the owner, and the umask can't be read without changing it.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with naming(target), os.fdopen(descriptor, mode, encoding=None if "b" in mode else encoding) as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, target)
        _sync_directory(target.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _is_stream(target: Path) -> bool:
    """Whether this is a terminal, /dev/null, /dev/stdout or a pipe. Renaming would replace it, even for all users."""
    if os.path.dirname(os.path.abspath(target)) in _STREAM_FOLDERS:
        return os.path.lexists(target)
    try:
        mode = os.stat(target).st_mode
    except (OSError, ValueError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _open_stream(target: Path) -> int:
    """OSError for a pipe that nobody reads, which would wait for ever, and for a disk."""
    if stat.S_ISBLK(os.stat(target).st_mode):
        raise FileExistsError(errno.EEXIST, "is a device, but a file is expected", os.fspath(target))
    descriptor = os.open(target, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK)
    os.set_blocking(descriptor, True)
    return descriptor


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Add this path to errors inside the block that have no file name, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno in _WHEN_WRITING:
            error.filename = os.fspath(path)
        raise


@contextmanager
def atomic_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary folder next to `path`. If the block succeeds, it becomes `path`, which must be new or empty.

    FileExistsError if another process wrote the folder meanwhile.
    """
    target = Path(path).resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_once(os.path.abspath(target.parent))
    temporary = _neighbour(target)
    temporary.mkdir()
    try:
        yield temporary
        if target.exists():
            if any(target.iterdir()):
                raise _written_meanwhile(target)
            # Fill the existing folder: it may be the working directory of a shell or a mount point.
            for item in sorted(temporary.iterdir()):
                shutil.move(item, target / item.name)
            temporary.rmdir()
        else:
            _rename_folder(temporary, target)
        _sync_directory(target.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _rename_folder(temporary: Path, target: Path) -> None:
    try:
        temporary.rename(target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise _written_meanwhile(target) from None
        raise


def _written_meanwhile(target: Path) -> FileExistsError:
    return FileExistsError(errno.EEXIST, "another process wrote this folder meanwhile", os.fspath(target))


def remove_leftovers(directory: Path) -> list[str]:
    """Remove incomplete files of killed processes of this host from a directory. Returns their names."""
    removed = []
    for path in directory.glob(".*.part"):
        match = _PART.fullmatch(path.name)
        if match is None or match[1] != _host() or is_alive(int(match[2])):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
        removed.append(path.name)
    return removed


@lru_cache(maxsize=1024)
def _remove_once(directory: str) -> None:
    """Before the first file that this process writes there. Listing a large directory for each would be slow."""
    remove_leftovers(Path(directory))


_STREAM_FOLDERS = ("/dev", "/dev/fd", "/proc/self/fd")
_WHEN_WRITING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
_PART = re.compile(r"\..+\.([0-9a-f]{4})-([0-9]+)-[0-9a-f]{6}\.part", re.DOTALL)


def _neighbour(target: Path) -> Path:
    """Return a name with host and process id, so that it is known later whether the writing process still exists."""
    return target.with_name(f".{target.name}.{_host()}-{os.getpid()}-{secrets.token_hex(3)}.part")


def _host() -> str:
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:4]


def _sync_directory(directory: Path) -> None:
    """Flush the directory to disk: without this, a rename can be lost in a power failure."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
