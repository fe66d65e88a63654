"""Freed memory is kept: in a process of its own, because it can't be undone."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, torch
from tympan.runtime.malloc import keep_freed_memory
kept = keep_freed_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(50_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
first, second = faults(), faults()
print(kept, first, second < 1_000)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks glibc")
def test_a_second_tensor_of_the_same_size_needs_no_new_pages() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    if done.stdout.startswith("False"):
        pytest.skip("this C library is not glibc")
    assert done.stdout.split()[2] == "True", done.stdout
