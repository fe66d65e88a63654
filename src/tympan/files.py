"""Read files that a user names: only regular files, and one message whatever is wrong with their content.

Opening a named pipe would wait for a writer, reading a device may never end, and the libraries that parse a damaged
file raise nearly anything.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

from tympan.errors import UserError

Path = str | os.PathLike[str]

_WHEN_WRITING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
_MESSAGE_CHARACTERS = 300
_MOST_ARRAY_BYTES = 100_000_000


def open_file(path: Path, *, kind: str = "file") -> BinaryIO:
    """A regular file, open for reading. UserError for what is missing, a directory, a pipe or a device."""
    name = os.fspath(path)
    try:
        # O_NONBLOCK: opening a named pipe without a writer returns at once.
        descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise UserError(f"{name}: no such {kind}") from None
    except OSError as error:
        raise UserError(f"{name}: cannot be read: {error.strerror}") from None
    except ValueError:
        raise UserError(f"{name!r}: not a path: it contains a NUL character") from None
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise UserError(f"{name}: is {_what_it_is(mode)}, but a file is expected")
    return cast(BinaryIO, os.fdopen(descriptor, "rb"))


def require_file(path: Path, *, kind: str = "file") -> None:
    """UserError unless `open_file` could open it. For libraries that open a file by its name."""
    open_file(path, kind=kind).close()


def read_bytes(path: Path, *, kind: str = "file") -> bytes:
    """The content of a regular file."""
    with open_file(path, kind=kind) as stream:
        return stream.read()


def copy_file(source: Path, target: Path, *, kind: str = "file") -> None:
    """Copy the content of a regular file."""
    with open_file(source, kind=kind) as stream, open(target, "wb") as copy:
        try:
            shutil.copyfileobj(stream, copy, 1 << 20)
        except OSError as error:
            error.filename = error.filename or os.fspath(target)
            raise


def read_text(path: Path, *, kind: str = "file", encoding: str = "utf-8") -> str:
    """The content of a text file, with line ends as \\n. `encoding`: utf-8, or utf-8-sig to skip a byte order mark."""
    try:
        text = read_bytes(path, kind=kind).decode(encoding)
    except UnicodeDecodeError as error:
        raise UserError(
            f"{os.fspath(path)}: not UTF-8 text (byte {error.start}); convert it, for example with iconv"
        ) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_json(path: Path, kind: str) -> dict[str, Any]:
    """The object in a JSON file. `kind`: what the file should be."""
    with explained(path, kind):
        content = json.loads(read_text(path))
    if not isinstance(content, dict):
        raise UserError(f"{os.fspath(path)}: damaged, or not {kind} (not a JSON object)")
    return content


def status_of(path: Path) -> os.stat_result | None:
    """Size and dates of a file; None if it is missing, or if no file can have this name."""
    try:
        return os.stat(path)
    except (OSError, ValueError):  # ValueError: a NUL character
        return None


@contextmanager
def explained(path: Path, kind: str, *, advice: str = "") -> Iterator[None]:
    """Inside, whatever reading `path` raises becomes one UserError that names it. `kind`: what it should be."""
    try:
        yield
    except UserError:
        raise
    except MemoryError as error:
        raise UserError(
            f"{os.fspath(path)}: reading it needs more memory than is available: the file is damaged or too "
            f"large{_shown(error)}{advice}"
        ) from error
    except OSError as error:
        if error.errno in _WHEN_WRITING:  # about another file, which is written at the same time
            raise
        reason = f": {error.strerror}" if error.strerror else f", or not {kind}{_shown(error)}"
        raise UserError(f"{os.fspath(path)}: cannot be read{reason}{advice}") from error
    except Exception as error:
        raise UserError(f"{os.fspath(path)}: damaged, or not {kind}{_shown(error)}{advice}") from error


def require_small_arrays(stream: BinaryIO) -> None:
    """ValueError for an .npz file with large arrays: compressed, they can take 1,000 times the size of the file."""
    if zipfile.is_zipfile(stream):
        with zipfile.ZipFile(stream) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > _MOST_ARRAY_BYTES:
            raise ValueError(f"its arrays have {size:,} bytes")
    stream.seek(0)


def _shown(error: BaseException) -> str:
    """The first line of an error's message, in parentheses."""
    lines = str(error).strip().splitlines()
    text = lines[0] if lines else type(error).__name__
    if isinstance(error, KeyError):
        text = f"{text} is missing"
    return f" ({text[:_MESSAGE_CHARACTERS]})"


def _what_it_is(mode: int) -> str:
    kinds = {
        stat.S_IFDIR: "a directory",
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    return kinds.get(stat.S_IFMT(mode), "something else")
