"""ESPnet2's packed models: a zip file with meta.yaml, unpacked once into the user's cache. No code in it is run."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import stat
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from tympan.errors import UserError
from tympan.files import explained, open_file
from tympan.runtime.atomic import atomic_folder, naming

MOST_BYTES = 64 * 2**30
"""Largest size of an unpacked model."""
MOST_FILES = 10_000
MOST_DEPTH = 50
"""Folders inside each other."""
MOST_RATIO = 200
"""Highest compression ratio to accept. Weights hardly compress, so a zip file above this is not a model."""


def unpacked(path: Path) -> Path:
    """The folder with the files of a packed model. The same file is unpacked once, and again if a file was damaged."""
    with open_file(path) as stream, explained(path, "a zip file"), zipfile.ZipFile(stream) as archive:
        entries = [entry for entry in archive.infolist() if not entry.is_dir()]
        _check(path, entries)
        folder = cache_folder() / _digest(path)
        if folder.exists() and not all(_is_intact(folder / _name(entry), entry) for entry in entries):
            logging.warning("%s: a file is missing or damaged; unpacking %s again", folder, path)
            shutil.rmtree(folder)
        if not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            # If another process unpacks the same file at the same time, one of the two folders is kept.
            with contextlib.suppress(FileExistsError), atomic_folder(folder) as target:
                for entry in entries:
                    _unpack(archive, entry, target)
    return folder


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/tympan/models`, by default `~/.cache/tympan/models`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tympan" / "models"


def _check(path: Path, entries: list[zipfile.ZipInfo]) -> None:
    """UserError for a file that is not a packed model, or would write outside its folder or fill the disk."""
    names = [PurePosixPath(_name(entry)) for entry in entries]
    if PurePosixPath("meta.yaml") not in names:
        raise UserError(f"{path}: not a packed model of ESPnet2: it has no meta.yaml")
    for entry, name in zip(entries, names, strict=True):
        is_outside = name.is_absolute() or ".." in name.parts or ":" in name.parts[0]
        if is_outside or stat.S_ISLNK(entry.external_attr >> 16):
            raise UserError(f"{path}: rejected: '{entry.filename}' would be written outside the model's folder")
    if max(len(name.parts) for name in names) > MOST_DEPTH:
        raise UserError(f"{path}: rejected: its folders are nested more than {MOST_DEPTH} levels deep")
    size = sum(entry.file_size for entry in entries)
    if len(entries) > MOST_FILES or size > min(MOST_BYTES, MOST_RATIO * max(path.stat().st_size, 1)):
        raise UserError(
            f"{path}: rejected: it would unpack to {len(entries)} files of {size / 2**20:.0f} MB, which is too much "
            "for a model. If you trust it, unpack it yourself and give the folder"
        )


def _name(entry: zipfile.ZipInfo) -> str:
    return entry.filename.replace("\\", "/")


def _is_intact(path: Path, entry: zipfile.ZipInfo) -> bool:
    """Whether a file has the size and the checksum of an entry."""
    if not path.is_file() or path.stat().st_size != entry.file_size:
        return False
    checksum = 0
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            checksum = zlib.crc32(block, checksum)
    return checksum == entry.CRC


def _unpack(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, folder: Path) -> None:
    target = folder / _name(entry)
    target.parent.mkdir(parents=True, exist_ok=True)
    # Reads no more than the size that was checked.
    with archive.open(entry) as source, naming(target), target.open("wb") as stream:
        shutil.copyfileobj(source, stream, 1 << 20)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()[:32]
