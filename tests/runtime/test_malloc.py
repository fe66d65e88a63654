"""Freed memory is kept. Tested in a separate process, because the setting can't be reverted."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# In the first step all pages are new. After some steps, the C library may keep them even without the setting.
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
print(*(faults() for _ in range(3)))
"""


def page_faults(mode: str) -> list[int]:
    """Return the page faults of three steps."""
    command = [sys.executable, "-c", PROGRAM, mode]
    # Another test in this process may have enabled huge pages, and child processes would inherit the setting.
    environment = {name: value for name, value in os.environ.items() if name != "THP_MEM_ALLOC_ENABLE"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    answer, *counts = done.stdout.split()
    if answer == "False":
        pytest.skip("this C library is not glibc")
    return list(map(int, counts))


@pytest.mark.skipif(sys.platform != "linux", reason="asks glibc")
def test_tensors_of_the_next_step_need_no_new_pages() -> None:
    _, usual, _ = page_faults("usual")
    assert usual > 5_000
    # The best of two runs, because a system with little free memory may take pages back at any time.
    assert min(page_faults("keep")[-1] for _ in range(2)) < usual / 10
