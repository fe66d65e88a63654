"""Run a command. A mistake of the user, a full disk or too little memory gives one message and an exit code."""

from __future__ import annotations

import errno
import io
import os
import sys
import traceback
from collections.abc import Callable, Sequence

from tympan.errors import UserError
from tympan.runtime.child import end_with_parent
from tympan.runtime.packages import FAILED_EXTENSION, describe_broken, describe_import_error

Main = Callable[[Sequence[str] | None], int]

_AGAIN = "Finished results are kept: free some space, then run the same command again."
_PERMISSIONS = "You have no permission to read or write it: use another path, or change the permissions."
_REMEDIES = {
    errno.ENOSPC: _AGAIN,
    errno.EDQUOT: _AGAIN,
    errno.EFBIG: "The file exceeds the size limit: raise the limit (ulimit -f), or use another path.",
    errno.EROFS: "The filesystem is read-only: use another path.",
    errno.EACCES: _PERMISSIONS,
    errno.EPERM: _PERMISSIONS,
    errno.ENOENT: "Check the path: it does not exist, or it can't be created.",
    errno.ENAMETOOLONG: "Use a shorter name.",
    errno.ELOOP: "The symbolic links form a loop: give the path of the file itself.",
}

_ESCAPED = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
"""Control characters: the escape character, for example, can change the title or the keys of a terminal."""

_MOST = 4000
"""Number of characters of a line of a message."""


def run(main: Main, argv: Sequence[str] | None = None) -> int:
    """Run the main function of a command. A mistake of the user gives one message on stderr and exit code 2."""
    _open_closed_streams()
    end_with_parent()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A character that the terminal's encoding lacks is escaped, as it is on stderr.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return main(argv)
    except UserError as error:
        _report(str(error))
        return 2
    except KeyboardInterrupt:
        print("tympan: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 141
    except (ImportError, OSError) as error:
        # Some packages raise OSError if a shared library is missing.
        message = describe_import_error(error)
        if message is None and isinstance(error, OSError):
            message = system_message(error)
        if message is None:
            raise
        _report(message)
        return 2
    except (MemoryError, RuntimeError) as error:
        from tympan.runtime.memory import is_out_of_memory, out_of_memory

        if is_out_of_memory(error):
            message = out_of_memory(error)
        elif isinstance(error, RecursionError) and any(
            frame.f_code.co_name == "mkdir" for frame, _ in traceback.walk_tb(error.__traceback__)
        ):
            message = "the path of an output has too many directories inside each other: use a shorter path"
        elif str(error).startswith(FAILED_EXTENSION):
            message = describe_broken("torch", error)
        else:
            message = describe_import_error(error)
        if message is None:
            raise
        _report(message)
        return 2
    except Exception as error:  # a package may raise anything while it is imported
        message = describe_import_error(error)
        if message is None:
            raise
        _report(message)
        return 2


def _open_closed_streams() -> None:
    """Open /dev/null for a closed stdin, stdout or stderr.

    Otherwise the next file gets its number, and what libraries print to stderr is written into that file.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def _report(message: str) -> None:
    """Print an error. A message may quote a file, so control characters are escaped and long lines are cut."""
    lines = message.translate(_ESCAPED).split("\n")
    print("tympan: error: " + "\n".join(map(_shortened, lines)), file=sys.stderr)


def _shortened(line: str) -> str:
    if len(line) <= _MOST:
        return line
    half = _MOST // 2
    return f"{line[:half]} [{len(line) - 2 * half:,} characters left out] {line[-half:]}"


def system_message(error: OSError) -> str | None:
    """Return a message if the user can fix the error, such as a full disk or a wrong path, else None."""
    # Files are written to a temporary path and renamed: the second name is the one that the user gave.
    name = error.filename2 or error.filename
    place = f"{name}: " if name else ""
    if error.errno in (errno.EISDIR, errno.ENOTDIR, errno.EEXIST):
        return f"{place}{error.strerror}"
    remedy = _REMEDIES.get(error.errno or 0)
    # Without the name of the missing file, the message would not help.
    if remedy is None or (error.errno == errno.ENOENT and not name):
        return None
    return f"{place}{error.strerror}. {remedy}"
