"""Memory that is freed in one step of training or one batch of decoding is used again in the next."""

from __future__ import annotations

import ctypes
import os

# glibc's malloc.h
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_LARGEST_MMAP_THRESHOLD = 32 << 20


def keep_freed_memory() -> bool:
    """Ask the C library not to hand freed blocks back to the system, and torch to keep large tensors in huge pages;
    False where it is not glibc. To be called before torch makes its first tensor, for then it decides about pages.

    By default every large tensor of a step is mapped anew and its pages cleared: 0.1 to 0.2 s of a 3 s step on a CPU.
    Blocks over 32 MB are still mapped on their own: on the heap a small one would soon sit in the hole they leave, and
    the process would grow. Their 20,000 pages a step were a tenth of it in the kernel; 2 MB pages make it a hundredth.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    wishes = {_M_MMAP_THRESHOLD: _LARGEST_MMAP_THRESHOLD, _M_TRIM_THRESHOLD: 2**31 - 1, _M_TOP_PAD: 64 << 20}
    return all(mallopt(name, value) == 1 for name, value in wishes.items())
