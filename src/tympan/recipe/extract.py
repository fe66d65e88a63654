"""Unpack untrusted archives: nothing is written outside the target, and a partial archive never looks complete."""

from __future__ import annotations

import errno
import os
import shutil
import tarfile
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from tympan.errors import UserError
from tympan.files import open_file
from tympan.runtime.atomic import naming
from tympan.runtime.executor import map_jobs

if TYPE_CHECKING:
    from typing_extensions import Self

MOST_DEPTH = 50
"""Directories inside each other."""
MOST_RATIO = 100
"""Times that an archive may grow when it is unpacked. AISHELL's grow by 1.3; text shrinks to a fifth at most."""
SMALL_BYTES = 100_000_000
"""What any archive may grow to: small files of equal lines shrink more."""
MOST_FILES = 5_000_000
MOST_NAME_BYTES = 1 << 20
"""Of a header with a long name or attributes, which is read into memory as a whole."""
_BAD_MEMBER = (None, errno.ENAMETOOLONG, errno.EINVAL, errno.EEXIST, errno.ENOTDIR, errno.EISDIR)
"""Errors that a damaged archive or name causes. gzip.BadGzipFile has no number."""


def extract(archive: Path, target: Path) -> list[Path]:
    """Unpack a tar archive into `target`; return the new paths at its top level.

    Members are written to a scratch directory beside `target` and moved when the whole archive is read, so an
    interruption loses only the work on this archive. Existing directories are merged, and files are replaced.
    """
    target.mkdir(parents=True, exist_ok=True)
    scratch = scratch_of(archive, target)
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    try:
        _unpack(archive, scratch)
        tops = sorted(scratch.iterdir())
        for top in tops:
            _move(top, target / top.name)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return [target / top.name for top in tops]


def scratch_of(archive: Path, target: Path) -> Path:
    """Holds members until the whole archive is read and moved. If it exists, an extraction was interrupted."""
    return target / f".extracting-{archive.name}"


def extract_nested(directory: Path, *, nj: int) -> int:
    """Unpack every `*.tar.gz` in `directory` in place (AISHELL: one per speaker) and delete it afterwards."""
    archives = sorted(directory.glob("*.tar.gz"))
    for _ in map_jobs(partial(_extract_and_remove, directory), archives, nj=nj, description="speakers"):
        pass
    return len(archives)


def _extract_and_remove(directory: Path, archive: Path) -> None:
    extract(archive, directory)
    archive.unlink()


def _unpack(archive: Path, scratch: Path) -> None:
    try:
        with open_file(archive) as stream, tarfile.open(fileobj=stream, mode="r:*", tarinfo=_Member) as tar:
            room = _Room(archive)
            while (member := tar.next()) is not None:
                tar.members.clear()  # type: ignore[attr-defined]  # millions would fill the memory
                room.take(member)
                _unpack_member(tar, member, scratch, archive)
            # tar stops at its own end marker; gzip's checksum follows it.
            while tar.fileobj is not None and tar.fileobj.read(1 << 20):
                pass
    except UserError:
        raise
    except EOFError as error:
        raise UserError(_damaged(archive, "it ends too early")) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"{scratch.parent}: the disk is full while unpacking {archive.name}. Free some space and run the "
                "command again."
            ) from error
        if error.errno in _BAD_MEMBER:
            raise UserError(_damaged(archive, error.strerror or str(error))) from error
        raise
    except Exception as error:  # damaged bytes make the decompressors and tarfile raise nearly anything
        raise UserError(_damaged(archive, str(error) or type(error).__name__)) from error


class _Member(tarfile.TarInfo):
    """A member whose header is checked before what belongs to it is read."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        member = super().frombuf(buf, encoding, errors)
        if member.type in _ABOUT_THE_NEXT and member.size > MOST_NAME_BYTES:
            raise tarfile.TarError(f"a name or an attribute of {member.size:,} bytes")
        return member


_ABOUT_THE_NEXT = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)
"""Types of headers that describe the next member."""


class _Room:
    """Counts what an archive expands to, and stops before a small file fills the disk."""

    def __init__(self, archive: Path) -> None:
        self._archive = archive
        self._bytes = self._files = 0
        self._most_bytes = SMALL_BYTES + MOST_RATIO * archive.stat().st_size

    def take(self, member: tarfile.TarInfo) -> None:
        if member.size < 0 or member.issparse():
            raise UserError(f"{self._archive}: member '{member.name}' is a sparse file, or its size is damaged.")
        self._files += 1
        self._bytes += member.size
        if self._bytes > self._most_bytes or self._files > MOST_FILES:
            raise UserError(
                f"{self._archive}: expands to more than {self._most_bytes:,} bytes or {MOST_FILES:,} files, which is "
                "too much for an archive of its size. If you trust it, unpack it yourself."
            )


def _unpack_member(tar: tarfile.TarFile, member: tarfile.TarInfo, scratch: Path, archive: Path) -> None:
    name = PurePosixPath(member.name)
    if name.is_absolute() or ".." in name.parts or "\\" in member.name or (name.parts and ":" in name.parts[0]):
        raise UserError(f"{archive}: member '{member.name}' points outside the target directory; nothing was unpacked.")
    if len(name.parts) > MOST_DEPTH:
        raise UserError(
            f"{archive}: a member has more than {MOST_DEPTH} directories in its path; nothing was unpacked."
        )
    path = scratch.joinpath(*name.parts)
    if member.isdir():
        path.mkdir(parents=True, exist_ok=True)
    elif member.isreg():
        path.parent.mkdir(parents=True, exist_ok=True)
        content = tar.extractfile(member)
        assert content is not None
        with naming(path), path.open("wb") as output:
            shutil.copyfileobj(content, output, 1 << 20)
        if path.stat().st_size != member.size:
            raise UserError(_damaged(archive, f"'{member.name}' is shorter than its header says"))
    else:
        kind = "a link" if member.issym() or member.islnk() else "a device or pipe"
        raise UserError(
            f"{archive}: member '{member.name}' is {kind}; only files and directories are allowed. Nothing was "
            "unpacked."
        )


def _move(source: Path, path: Path) -> None:
    if not source.is_dir():
        if path.is_dir():
            raise UserError(
                f"{path} is a directory, but the archive has a file with that name. Move it away and run the "
                "command again."
            )
        os.replace(source, path)
        return
    try:
        os.rename(source, path)  # atomic if nothing is there yet
    except OSError as error:
        if not path.is_dir():
            raise UserError(
                f"{path} blocks a directory of the archive ({error.strerror}). Move it away and run the command again."
            ) from error
        for child in sorted(source.iterdir()):
            _move(child, path / child.name)


def _damaged(archive: Path, how: str) -> str:
    return (
        f"{archive} ({archive.stat().st_size:,} bytes) is damaged or truncated: {how}. "
        "Remove it and run stage -1 again to download it again."
    )
