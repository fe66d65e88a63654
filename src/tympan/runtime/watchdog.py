"""Detect a run that hangs, and report which ranks are waiting, with their stacks.

Every rank records when it enters and leaves a collective operation. If nothing was recorded for the time limit, the
rank publishes the stack of its main thread, reads the stacks of the other ranks, logs all of them, and ends its
process. The agent then restarts the run.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TypedDict

EXIT_HUNG = 70


class Store(Protocol):
    """The part of the interface of torch's key-value store that is used here."""

    def set(self, key: str, value: str, /) -> None: ...

    def get(self, key: str, /) -> bytes: ...

    def check(self, keys: list[str], /) -> bool: ...


class _Note(TypedDict):
    """The state that a rank publishes."""

    where: str
    exchanges: int
    stack: str


class Watchdog:
    """One thread per rank. `store` is torch's key-value store, which all ranks can reach."""

    def __init__(self, store: Store, *, rank: int, size: int, limit_s: float) -> None:
        self.store = store
        self.rank = rank
        self.size = size
        self.limit_s = limit_s
        self._where = "working"
        self._since = time.monotonic()
        self._count = 0
        self._main = threading.main_thread().ident
        self._is_closed = threading.Event()
        threading.Thread(target=self._watch, name="tympan-watchdog", daemon=True).start()

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Context in which this rank waits for the others."""
        self._note(f"waiting in {what}")
        yield
        self._note("working")

    def close(self) -> None:
        self._is_closed.set()

    def _note(self, where: str) -> None:
        self._where, self._since, self._count = where, time.monotonic(), self._count + 1

    def _watch(self) -> None:
        pause = max(0.2, min(5.0, self.limit_s / 10))
        while not self._is_closed.wait(pause):
            if time.monotonic() - self._since > self.limit_s:
                self._end()

    def _end(self) -> None:
        frame = sys._current_frames().get(self._main or 0)
        stack = "".join(traceback.format_stack(frame)[-8:]) if frame is not None else "(no stack)"
        own: _Note = {"where": self._where, "exchanges": self._count, "stack": stack}
        message = self._describe(self._exchange_notes(own))
        logging.critical(message)
        from tympan.runtime.launch import record_failure

        record_failure(message)
        os._exit(EXIT_HUNG)

    def _exchange_notes(self, own: _Note) -> dict[int, _Note | None]:
        """Publish the state of this rank and read the others. None for a rank that did not publish its state."""
        found: dict[int, _Note | None] = dict.fromkeys(range(self.size))
        found[self.rank] = own
        deadline = time.monotonic() + max(2.0, min(30.0, self.limit_s / 4))
        try:
            self.store.set(f"tympan/hung/{self.rank}", json.dumps(own))
            while time.monotonic() < deadline and None in found.values():
                for rank in [r for r, note in found.items() if note is None]:
                    if self.store.check([f"tympan/hung/{rank}"]):
                        found[rank] = json.loads(self.store.get(f"tympan/hung/{rank}"))
                time.sleep(0.2)
        except RuntimeError as error:
            logging.warning("can't reach the key-value store of the run: %s", error)
        return found

    def _describe(self, notes: dict[int, _Note | None]) -> str:
        lines = [f"no progress for {self.limit_s:g} s (--dist_timeout)."]
        silent = [rank for rank, note in notes.items() if note is None]
        busy = [rank for rank, note in notes.items() if note is not None and note["where"] == "working"]
        if silent:
            lines.append(f"Ranks that do not respond (stopped, or their host is down): {_listed(silent)}.")
        if busy:
            lines.append(f"Ranks that are not waiting, so they block the others: {_listed(busy)}.")
        for rank, note in notes.items():
            if note is not None:
                lines.append(
                    f"rank {rank}: {note['where']}, after {note['exchanges']} collective operations, at\n"
                    f"{note['stack']}"
                )
        return "\n".join(lines)


def _listed(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks))
