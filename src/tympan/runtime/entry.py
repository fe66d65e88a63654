"""Running a command: a user's mistake, a full disk or too little memory becomes one message and an exit code."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Sequence

from tympan.errors import UserError
from tympan.runtime.child import end_with_parent
from tympan.runtime.packages import FAILED_EXTENSION, describe_broken, describe_import_error

Main = Callable[[Sequence[str] | None], int]

_AGAIN = "What was finished is kept: make room, then run the same command again."
_PERMISSIONS = "You may not read or write there: choose another place, or change its permissions."
_REMEDIES = {
    errno.ENOSPC: _AGAIN,
    errno.EDQUOT: _AGAIN,
    errno.EFBIG: "Files may not grow that large here: raise the limit (ulimit -f), or choose another place.",
    errno.EROFS: "Nothing can be written there: choose another place.",
    errno.EACCES: _PERMISSIONS,
    errno.EPERM: _PERMISSIONS,
    errno.ENOENT: "Check the path: it is not there, or can't be made there.",
    errno.ENAMETOOLONG: "Choose a shorter name.",
    errno.ELOOP: "Its links lead to themselves: name the file itself.",
}


def run(main: Main, argv: Sequence[str] | None = None) -> int:
    """Run a command's main: a user's mistake becomes one message on stderr and exit code 2."""
    end_with_parent()
    try:
        return main(argv)
    except UserError as error:
        print(f"tympan: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("tympan: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 141
    except (ImportError, OSError) as error:
        # A shared library that is missing is an OSError in some packages.
        message = describe_import_error(error)
        if message is None and isinstance(error, OSError):
            message = _system_message(error)
        if message is None:
            raise
        print(f"tympan: error: {message}", file=sys.stderr)
        return 2
    except (MemoryError, RuntimeError) as error:
        from tympan.runtime.memory import is_out_of_memory, out_of_memory

        if is_out_of_memory(error):
            message = out_of_memory(error)
        elif str(error).startswith(FAILED_EXTENSION):
            message = describe_broken("torch", error)
        else:
            raise
        print(f"tympan: error: {message}", file=sys.stderr)
        return 2


def _system_message(error: OSError) -> str | None:
    """What the user can mend: a full disk, a wrong path. None: it is our fault, or the machine's."""
    # Files are written beside their place and renamed: the second name is the one the user knows.
    name = error.filename2 or error.filename
    place = f"{name}: " if name else ""
    if error.errno in (errno.EISDIR, errno.ENOTDIR, errno.EEXIST):
        return f"{place}{error.strerror}"
    remedy = _REMEDIES.get(error.errno or 0)
    # Which file is missing must be said, or nobody can look for it.
    if remedy is None or (error.errno == errno.ENOENT and not name):
        return None
    return f"{place}{error.strerror}. {remedy}"
