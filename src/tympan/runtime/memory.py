"""Detect out-of-memory errors, describe them, and return the amount of memory."""

from __future__ import annotations

import os
from pathlib import Path

_SIGNS = ("can't allocate memory", "out of memory", "cannot allocate memory")
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Files with the memory limit of a container, for version 2 and version 1 of control groups."""

REMEDY = (
    "Use smaller batches (--batch_size or --batch_bins, with a larger --accum_grad; in a recipe, pass them with "
    "--asr_args), --grad_checkpointing true, or fewer processes (--nj, --num_workers), or free memory. The same "
    "command continues from the last saved state."
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out. torch raises RuntimeError, or OutOfMemoryError on accelerators."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in _SIGNS)


def out_of_memory(error: BaseException, *, remedy: str = REMEDY) -> str:
    """Return a message with the original error and what to do."""
    said = (str(error).strip() or type(error).__name__).splitlines()[0]
    return f"out of memory ({said.rpartition('DefaultCPUAllocator: ')[2]}). {remedy}"


def memory_bytes() -> int:
    """Return the memory of this machine, or the limit of the container if it is lower."""
    amounts = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in _LIMITS:
        try:
            amounts.append(int(path.read_text()))
        except (OSError, ValueError):  # the file does not exist or contains "max"
            continue
    return min(amounts)
