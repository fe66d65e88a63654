"""The recordings that a directory stands for."""

from __future__ import annotations

from pathlib import Path

from tympan.data.recordings import find_recordings


def test_recordings_to_convert_are_not_ignored(tmp_path: Path) -> None:
    """A folder from a phone has m4a files. They can't be read, but leaving them out would go unnoticed."""
    for name in ("a.wav", "b.M4A", "c.m4a", "c.flac", "notes.txt"):
        (tmp_path / name).touch()
    assert [recording.path.name for recording in find_recordings([tmp_path])] == ["a.wav", "b.M4A", "c.flac"]
