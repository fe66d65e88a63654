"""Finds a run that hangs: who waits for whom, with stacks, instead of hours of silence.

Every rank notes when it enters and leaves an exchange. When a rank has noted nothing for the time limit, it writes down
where its main thread stands, reads what the others wrote, says it all, and ends the process; the agent then restarts.
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
    """What is used of torch's key-value store."""

    def set(self, key: str, value: str, /) -> None: ...

    def get(self, key: str, /) -> bytes: ...

    def check(self, keys: list[str], /) -> bool: ...


class _Note(TypedDict):
    """What a rank writes down about itself."""

    where: str
    exchanges: int
    stack: str


class Watchdog:
    """One thread a rank. `store` is torch's key-value store that all ranks reach."""

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
        """Inside, this rank waits for the others."""
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
        """What each rank says; None for one that says nothing (stopped, or its host is gone)."""
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
            logging.warning("the store of the run can't be reached: %s", error)
        return found

    def _describe(self, notes: dict[int, _Note | None]) -> str:
        lines = [f"no progress for {self.limit_s:g} s (--dist_timeout)."]
        silent = [rank for rank, note in notes.items() if note is None]
        busy = [rank for rank, note in notes.items() if note is not None and note["where"] == "working"]
        if silent:
            lines.append(f"Ranks that say nothing (stopped, or their host is gone): {_listed(silent)}.")
        if busy:
            lines.append(f"Ranks that are not waiting for anyone, so hold the others up: {_listed(busy)}.")
        for rank, note in notes.items():
            if note is not None:
                lines.append(f"rank {rank}: {note['where']}, after {note['exchanges']} exchanges, at\n{note['stack']}")
        return "\n".join(lines)


def _listed(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks))
