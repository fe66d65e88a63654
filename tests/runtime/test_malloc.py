"""Freed memory is kept: in a process of its own, because it can't be undone."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, statistics, torch
from tympan.runtime.malloc import keep_freed_memory
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    tensors = [torch.ones(24 << 18) for _ in range(8)]
    del tensors
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
# Medians: the system may take a page back at any time and give it again.
usual = statistics.median(faults() for _ in range(5))
kept = keep_freed_memory()
faults()
print(kept, usual, statistics.median(faults() for _ in range(5)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks glibc")
def test_tensors_of_the_next_step_need_no_new_pages() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    if done.stdout.startswith("False"):
        pytest.skip("this C library is not glibc")
    usual, kept = map(int, done.stdout.split()[1:])
    assert usual > 5_000
    assert kept < usual / 10
