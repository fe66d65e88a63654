"""Digest of the content of a file or directory; files are read again only if their size or date changed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from tympan.data.audio import is_pipe, locate, split_ark
from tympan.data.kaldi_dir import read_table
from tympan.files import open_file, status_of
from tympan.runtime.atomic import atomic_write

MISSING = "missing"


def digest_of(value: object) -> str:
    """Digest of settings: any JSON value; paths as text, mappings in any order."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.blake2b(text.encode("utf-8"), digest_size=16).hexdigest()


_STAMP_LENGTH = 4


class Fingerprints:
    """Content digests of files, remembered in `cache` by (size, date, inode)."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._known: dict[str, list[object]] = {}
        self._changed = False
        try:
            known = json.loads(cache.read_text(encoding="utf-8"))
            self._known = {name: [*stamp] for name, stamp in known.items() if len(stamp) == _STAMP_LENGTH}
        except Exception:  # a damaged cache costs only time: digests are computed again
            self._known = {}

    def of(self, path: Path) -> str:
        """The digest of a file's bytes, or of a directory's names and files; `missing` if there is nothing."""
        if path.is_dir():
            return digest_of({str(file.relative_to(path)): self._of_file(file) for file in _files(path)})
        return self._of_file(path)

    def of_recordings(self, table: Path) -> str:
        """The digest of the audio listed in a wav.scp: its files, or the commands that produce it."""
        if not table.is_file():
            return MISSING
        sources = [source if is_pipe(source) else locate(source, table.parent) for source in read_table(table).values()]
        return digest_of(
            {source: source if is_pipe(source) else self._of_file(Path(split_ark(source)[0])) for source in sources}
        )

    def save(self) -> None:
        if self._changed:
            with atomic_write(self._cache) as stream:
                json.dump(self._known, stream)
            self._changed = False

    def _of_file(self, path: Path) -> str:
        status = status_of(path)
        if status is None:
            return MISSING
        key = os.path.abspath(path)
        stamp = [status.st_size, status.st_mtime_ns, status.st_ino]
        known = self._known.get(key)
        if known is not None and known[:3] == stamp:
            return str(known[3])
        with open_file(path) as stream:
            digest = _digest_of_stream(stream)
        self._known[key] = [*stamp, digest]
        self._changed = True
        return digest


def size_of(path: Path) -> int:
    """Bytes of a file or of everything in a directory, without what links in it point to."""
    if path.is_dir():
        return sum(file.lstat().st_size for file in _files(path))
    return path.stat().st_size if path.exists() else 0


def last_written(directory: Path) -> float:
    """Time of the last change to a file in the directory, in seconds since the epoch; 0 if there is none."""
    return max((file.lstat().st_mtime for file in _files(directory)), default=0.0)


def _digest_of_stream(stream: BinaryIO) -> str:
    digest = hashlib.blake2b(digest_size=16)
    while block := stream.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def _files(directory: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(directory):
        folders.sort()
        yield from (Path(root, name) for name in sorted(names))
