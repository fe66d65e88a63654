"""Cache files next to the data, in a folder `.tympan`: line tables and lengths."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import IO

from tympan.runtime.atomic import atomic_write

FOLDER = ".tympan"

_log = logging.getLogger(__name__)


def kept_path(source: Path, suffix: str) -> Path:
    return source.parent / FOLDER / f"{source.name}.{suffix}"


def keep(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Let `write` fill the file. If the folder is not writable, warn and write nothing."""
    try:
        # Root could write to a read-only folder, but should not.
        if not path.parent.parent.stat().st_mode & 0o222:
            reason = "its folder is read-only"
        else:
            with atomic_write(path, "wb") as stream:
                write(stream)
            return
    except OSError as error:
        reason = error.strerror or str(error)
    _log.warning("cannot cache %s (%s): it will be computed again at each start", path, reason)
