"""The recordings that a command line names: files, directories, glob patterns, and `-` for standard input."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tympan.errors import UserError

STDIN = "-"
SUFFIXES = (".wav", ".flac", ".mp3", ".ogg", ".oga", ".opus", ".aif", ".aiff", ".au", ".sph", ".caf", ".w64")
"""Suffixes of the files that are used from a directory. A file that is given by name may have any suffix."""

UNREADABLE = (".m4a", ".aac", ".wma", ".amr")
"""Suffixes of recordings that are not ignored in a directory, so that the message says to convert them."""


@dataclass(frozen=True)
class Recording:
    """`name` is the path of its output files, without suffix: below a directory it keeps the subdirectories."""

    path: Path
    name: str

    @property
    def is_stdin(self) -> bool:
        return str(self.path) == STDIN


def find_recordings(given: Sequence[str | os.PathLike[str]]) -> list[Recording]:
    """Return all recordings without duplicates, in the order given. Files of a directory or pattern are sorted."""
    found: dict[Path, Recording] = {}
    for item in map(Path, given):
        for recording in _expanded(item):
            found.setdefault(recording.path, recording)
    return list(found.values())


def _expanded(item: Path) -> list[Recording]:
    if str(item) == STDIN:
        return [Recording(item, "stdin")]
    if item.is_dir():
        files = _recordings_below(item)
        if not files:
            raise UserError(f"{item}: the directory has no audio files ({', '.join(SUFFIXES)})")
        return [Recording(path, str(path.relative_to(item).with_suffix(""))) for path in files]
    if not item.exists() and glob.has_magic(str(item)):
        files = [Path(path) for path in sorted(glob.glob(str(item), recursive=True)) if Path(path).is_file()]
        if not files:
            raise UserError(f"{item}: no file matches this pattern")
        return [Recording(path, path.stem) for path in files]
    # A missing file is reported when it is read, so that the others are transcribed.
    return [Recording(item, item.stem)]


def _recordings_below(directory: Path) -> list[Path]:
    """The recordings of a directory. One that must be converted is left out if its converted file is beside it."""
    files = [path for path in sorted(directory.rglob("*")) if path.suffix.lower() in (*SUFFIXES, *UNREADABLE)]
    readable = {path.with_suffix("") for path in files if path.suffix.lower() in SUFFIXES}
    return [
        path
        for path in files
        if path.is_file() and (path.suffix.lower() in SUFFIXES or path.with_suffix("") not in readable)
    ]
