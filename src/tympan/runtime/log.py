"""Logging: one format for console and file."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    _StreamHandler = logging.StreamHandler[TextIO]
else:
    _StreamHandler = logging.StreamHandler

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
DATE = "%Y-%m-%d %H:%M:%S"


def setup_logging(
    level: str | int = "INFO", file: str | Path | None = None, *, console: bool = True, rank: int | None = None
) -> None:
    """Log to stderr and, if given, append to `file`. `rank` marks the lines of one process among several.

    May be called again (a run learns its output directory late): the last call counts.
    """
    prefix = "" if rank is None else f"[rank {rank}] "
    formatter = logging.Formatter(prefix + FORMAT, DATE)
    handlers: list[logging.Handler] = []
    if console:
        handlers.append(_ConsoleHandler())
    if file is not None:
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        handlers.append(_FileHandler(file, encoding="utf-8"))
    root = logging.getLogger()
    for old in [item for item in root.handlers if isinstance(item, _ConsoleHandler | _FileHandler)]:
        root.removeHandler(old)
        old.close()
    for handler in handlers:
        handler.setFormatter(formatter)
        root.addHandler(handler)
    root.setLevel(level)
    logging.captureWarnings(True)
    for noisy in ("matplotlib", "PIL", "fsspec"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, root.level))


class _FileHandler(logging.FileHandler):
    """Of its own type, so that a second call finds what the first one added."""

    def handleError(self, record: logging.LogRecord) -> None:
        """A full disk ends the run where it matters, with one message; not with a traceback for every line."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)

    def close(self) -> None:
        try:
            super().close()
        except OSError:  # what was not written before can't be written now
            return


class _ConsoleHandler(_StreamHandler):
    """Writes above a progress bar instead of through it."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)

    def emit(self, record: logging.LogRecord) -> None:
        tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)
        if tqdm is None or not tqdm._instances:
            super().emit(record)
            return
        try:
            tqdm.write(self.format(record), file=self.stream)
        except Exception:
            self.handleError(record)
