"""Measure the time of a computation, also while other programs use the processor."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

AGREEMENT = 1.15
"""Two measurements agree if the longer one is at most this many times the shorter one."""
MOST_PASSES = 8
BUSY = 1.4
"""The processor is busy if a computation takes this many times the time that it needs."""


@dataclass(frozen=True)
class Timing:
    """Seconds of a computation on an idle machine, and whether other programs slowed it down."""

    seconds: float
    is_busy: bool = False

    def per(self, amount: float) -> Timing:
        return Timing(self.seconds / amount, self.is_busy)


NOTHING = Timing(0.0)


def time_repeatedly(compute: Callable[[], object], *, on_cpu: bool) -> Timing:
    """Repeat until two measurements agree, and return the shorter one.

    On a CPU the measure is the time that the threads of this process really ran. It is compared with the elapsed time
    to find out whether the machine is busy. A thread that waits for another one runs too, so elapsed time is the limit.
    """
    threads = _threads() if on_cpu else 1
    used: list[float] = []
    elapsed: list[float] = []
    for _ in range(MOST_PASSES):
        began, began_used = time.monotonic(), time.process_time()
        compute()
        elapsed.append(time.monotonic() - began)
        used.append(min(elapsed[-1], (time.process_time() - began_used) / threads) if on_cpu else elapsed[-1])
        shortest = sorted(used)[:2]
        if len(shortest) == 2 and shortest[1] <= AGREEMENT * shortest[0]:
            break
    return Timing(min(used), is_busy=min(elapsed) > BUSY * min(used))


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
