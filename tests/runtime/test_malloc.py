"""Freed memory is kept: in a process of its own, because it can't be undone."""

from __future__ import annotations

import subprocess
import sys

import pytest

# The second step: in the first one all pages are new, and after some the C library happens to keep them by itself.
PROGRAM = """
import resource, sys
from tympan.runtime.malloc import keep_freed_memory
print(keep_freed_memory() if sys.argv[1] == "keep" else None)
import torch
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    tensors = [torch.ones(24 << 18) for _ in range(8)]
    del tensors
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


def page_faults(mode: str) -> int:
    command = [sys.executable, "-c", PROGRAM, mode]
    answer, count = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    if answer == "False":
        pytest.skip("this C library is not glibc")
    return int(count)


@pytest.mark.skipif(sys.platform != "linux", reason="asks glibc")
def test_tensors_of_the_next_step_need_no_new_pages() -> None:
    usual = page_faults("usual")
    assert usual > 5_000
    # The best of two: a system short of memory may take pages back at any time.
    assert min(page_faults("keep") for _ in range(2)) < usual / 5
