"""Functions that the executor's tests send to other processes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from tympan.errors import UserError
from tympan.runtime.atomic import atomic_write


def square(number: int) -> int:
    return number * number


def fail_at_three(number: int) -> int:
    if number == 3:
        raise UserError("item 3 is bad")
    return number


def die_once(job: tuple[int, str]) -> int:
    """The first worker that gets number 5 kills itself."""
    number, folder = job
    mark = Path(folder, "died")
    if number == 5 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def die_always(number: int) -> int:
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def write_slowly(job: tuple[int, str]) -> tuple[int, int]:
    """Write one output file atomically, and record which process wrote it."""
    number, folder = job
    with atomic_write(Path(folder, f"{number}.txt")) as stream:
        stream.write(f"{number}\n")
        time.sleep(0.1)
    return number, os.getpid()
