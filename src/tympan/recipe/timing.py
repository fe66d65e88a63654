"""Measure the time of a computation, also while other programs use the processor."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

AGREEMENT = 1.15
"""Two measurements agree if the longer one is at most this many times the shorter one."""
MOST_PASSES = 8
BUSY = 1.4
"""The processor is busy if a computation takes this many times the time that it needs."""


@dataclass(frozen=True)
class Timing:
    """Seconds of a computation on an idle machine, and how many times as long it takes now with other programs.

    `slowdown_alone` is the same for one thread, or None if that was not measured.
    """

    seconds: float
    slowdown: float = 1.0
    slowdown_alone: float | None = None

    @property
    def is_busy(self) -> bool:
        return self.slowdown > BUSY

    def per(self, amount: float) -> Timing:
        return replace(self, seconds=self.seconds / amount)


NOTHING = Timing(0.0)


def time_repeatedly(compute: Callable[[], object], *, on_cpu: bool, max_threads: int | None = None) -> Timing:
    """Time of a computation on an idle machine, with the threads of this process or at most `max_threads`.

    On a CPU that other programs use, threads spend most of their time waiting for each other, and waiting uses the
    processor too. The processor time of one thread contains no waiting, so it is used there instead. The speedup by
    several threads can't be measured then. It is between 1 and their number; its square root is the estimate.
    """
    if not on_cpu:
        seconds, _ = _measure(compute, threads=None)
        return Timing(seconds)
    available = _threads()
    threads = available if max_threads is None else min(available, max_threads)
    try:
        _set_threads(threads)
        together, elapsed = _measure(compute, threads=threads)
        if threads == 1:
            return Timing(together, slowdown=elapsed / together)
        _set_threads(1)
        alone, elapsed_alone = _measure(compute, threads=1)
    finally:
        _set_threads(available)
    if max(elapsed / together, elapsed_alone / alone) <= BUSY:
        return Timing(together)
    seconds = min(together, alone / math.sqrt(threads))
    return Timing(seconds, slowdown=elapsed / seconds, slowdown_alone=elapsed_alone / seconds)


def _measure(compute: Callable[[], object], *, threads: int | None) -> tuple[float, float]:
    """Repeat until two measurements agree. Returns the shortest time that a thread ran, and the shortest elapsed one.

    Both are elapsed times if `threads` is None, for accelerators.
    """
    used: list[float] = []
    elapsed: list[float] = []
    for _ in range(MOST_PASSES):
        began, began_used = time.monotonic(), time.process_time()
        compute()
        elapsed.append(time.monotonic() - began)
        ran = elapsed[-1] if threads is None else (time.process_time() - began_used) / threads
        used.append(min(elapsed[-1], ran))
        shortest = sorted(used)[:2]
        if len(shortest) == 2 and shortest[1] <= AGREEMENT * shortest[0]:
            break
    return min(used), min(elapsed)


def describe_load() -> str | None:
    """A line about other programs that use the processor, or None if there are few."""
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    if load < 0.75 * cores:
        return None
    return f"the machine is busy: {load:.1f} processes on {cores} cores in the last minute"


def _threads() -> int:
    import torch

    return torch.get_num_threads()


def _set_threads(count: int) -> None:
    import torch

    torch.set_num_threads(count)
