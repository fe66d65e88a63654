"""SIGTERM and Ctrl-C reach every process of a job. Loader workers continue until training has saved its state."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import pytest

WORK = """
    import os, signal, time
    from torch.utils.data import DataLoader
    from tympan.data.loader import _prepare_worker

    class Slow:
        def __len__(self):
            return 6

        def __getitem__(self, row):
            time.sleep(0.3)
            return row

    if __name__ == "__main__":
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, frame: None)  # as in training, which stops later
        for row in DataLoader(Slow(), batch_size=None, num_workers=1, worker_init_fn=_prepare_worker):
            print(row, flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_workers_outlive_a_signal_to_the_whole_group(number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WORK)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "0\n"
    os.killpg(process.pid, number)
    rest, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert rest.split() == ["1", "2", "3", "4", "5"]
