"""The one exception that means "the user can mend this"."""


class UserError(Exception):
    """A mistake in what the user gave: shown as its message alone, exit code 2.

    The message says what, where, what was found, what is allowed and what to do next.
    Several mistakes of one file or command line are joined with newlines.
    """
