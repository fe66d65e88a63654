"""Running out of memory: how to know it, what to say, and how much there is."""

from __future__ import annotations

import os
from pathlib import Path

_SIGNS = ("can't allocate memory", "out of memory", "cannot allocate memory")
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Where a container's limit is, of the second and the first kind of control groups."""

REMEDY = (
    "Use a smaller batch (--batch_size or --batch_bins; --accum_grad makes up for it; in a recipe through --asr_args), "
    "--grad_checkpointing true, fewer processes (--nj, --num_workers), or free memory. The same command goes on from "
    "what was saved."
)


def is_out_of_memory(error: BaseException) -> bool:
    """torch tells a full memory by a RuntimeError, on accelerators by a kind of it that carries the name."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in _SIGNS)


def out_of_memory(error: BaseException, *, remedy: str = REMEDY) -> str:
    """One message: what the system said, and what to do."""
    said = (str(error).strip() or type(error).__name__).splitlines()[0]
    return f"memory ran out ({said.rpartition('DefaultCPUAllocator: ')[2]}). {remedy}"


def memory_bytes() -> int:
    """Memory of this machine, or of the container if that has less."""
    amounts = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in _LIMITS:
        try:
            amounts.append(int(path.read_text()))
        except (OSError, ValueError):  # not there, or "max"
            continue
    return min(amounts)
