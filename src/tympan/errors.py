"""The exception for mistakes that the user can fix."""

from __future__ import annotations

from collections.abc import Sequence

MAX_SHOWN = 20


class UserError(Exception):
    """A mistake of the user. Only its message is printed, without a traceback, and the exit code is 2.

    The message says what, where, what was found, what is allowed and what to do next.
    Several mistakes in one file or command line are joined with newlines.
    """


def check_faults(faults: Sequence[str]) -> None:
    """Raise one UserError with the first of many faults of a file, and the number of the others, if there are any."""
    if faults:
        more = [f"... and {len(faults) - MAX_SHOWN} more"] if len(faults) > MAX_SHOWN else []
        raise UserError("\n".join([*faults[:MAX_SHOWN], *more]))
