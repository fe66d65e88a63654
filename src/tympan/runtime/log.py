"""Set up logging, with one format for console and file."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from tympan.runtime.atomic import atomic_write

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

    If stderr is redirected to `file`, as by run.pl, every line is written once. The function may be called again,
    because the output directory is not known at first. The last call replaces earlier ones.
    """
    prefix = "" if rank is None else f"[rank {rank}] "
    formatter = logging.Formatter(prefix + FORMAT, DATE)
    handlers: list[logging.Handler] = []
    if file is not None:
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        handlers.append(_FileHandler(file, encoding="utf-8"))
    if console and (file is None or not _stderr_is(file)):
        handlers.insert(0, _ConsoleHandler())
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


def _stderr_is(file: str | Path) -> bool:
    """Return whether stderr is redirected to this file."""
    try:
        return os.path.samestat(os.fstat(sys.stderr.fileno()), os.stat(file))
    except (OSError, ValueError, AttributeError):  # stderr is closed or replaced by an object without a descriptor
        return False


def remove_log_lines(is_removed: Callable[[str], bool]) -> int:
    """Remove lines from the log file of `setup_logging`, for example those of steps that are done again."""
    count = 0
    for handler in logging.getLogger().handlers:
        path = Path(handler.baseFilename) if isinstance(handler, _FileHandler) else None
        if not isinstance(handler, _FileHandler) or path is None or not path.is_file():
            continue
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
        kept = [line for line in lines if not is_removed(line)]
        if len(kept) == len(lines):
            continue
        with atomic_write(path) as stream:
            stream.writelines(kept)
        handler.reopen()
        count += len(lines) - len(kept)
    return count


class _FileHandler(logging.FileHandler):
    """A separate type, so that a second call of `setup_logging` finds the handler of the first one."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Ignore a full disk here, to avoid a traceback for every line. Writing results reports it."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)

    def reopen(self) -> None:
        """Continue in the file that now has this name."""
        old = self.setStream(self._open())
        if old is not None:
            old.close()

    def close(self) -> None:
        try:
            super().close()
        except OSError:  # the buffered lines can't be written
            return


class _ConsoleHandler(_StreamHandler):
    """Writes lines above the progress bar, without breaking it."""

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
