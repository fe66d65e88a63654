"""What is worth keeping beside the data for the next time: line tables and lengths, in a folder `.tympan`."""

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
    """Let `write` fill the file; where the folder can't be written there is a warning and no file."""
    try:
        # Root may write anywhere, but should not where nobody is meant to.
        if not path.parent.parent.stat().st_mode & 0o222:
            reason = "its folder is read-only"
        else:
            with atomic_write(path, "wb") as stream:
                write(stream)
            return
    except OSError as error:
        reason = error.strerror or str(error)
    _log.warning("%s is not kept (%s): it is made again at each start", path, reason)
