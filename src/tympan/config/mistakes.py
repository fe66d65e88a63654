"""All mistakes in the user's input, collected and reported together."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from tympan.errors import UserError


class Mistakes:
    """A list of mistakes, each with its location."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.notes: list[str] = []
        """What the user should know, but is not wrong."""

    def add(self, where: str, what: str) -> None:
        """Add a mistake; duplicates are reported once."""
        line = f"{where}: {what}" if where else what
        if line not in self.found:
            self.found.append(line)

    def check(self) -> None:
        """Raise one UserError with all mistakes, if there are any."""
        if not self.found:
            return
        if len(self.found) == 1:
            raise UserError(self.found[0])
        raise UserError("\n".join([f"{len(self.found)} mistakes:", *(f"  {line}" for line in self.found)]))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ` Did you mean 'x'?`, or an empty text if no name is similar."""
    near = nearest(name, known)
    return f" Did you mean '{near}'?" if near else ""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to `name`."""
    by_folded = {_fold(item): item for item in known}
    near = difflib.get_close_matches(_fold(name), by_folded, n=1, cutoff=0.6)
    return by_folded[near[0]] if near else None


def _fold(name: str) -> str:
    return name.lower().replace("-", "_")
