"""The exception for mistakes that the user can fix."""


class UserError(Exception):
    """A mistake of the user. Only its message is printed, without a traceback, and the exit code is 2.

    The message says what, where, what was found, what is allowed and what to do next.
    Several mistakes in one file or command line are joined with newlines.
    """
