"""After kill -9 of the process that started a run, none of its processes may continue training."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from train_corpus import command, environment

from tympan.runtime.child import module_command

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are listed in /proc")

ENDLESS = ("--max_epoch", "100000", "--log_interval", "1")
LIMIT_S = 10.0
"""Time until every process must be gone. torch's data workers check for their parent every 5 s."""


def session_of(mark: str) -> list[int]:
    """The processes whose environment contains `mark`, also those without a parent."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def has_trained(output: Path) -> bool:
    log = output / "train.log"
    return log.exists() and "1-1batch:" in log.read_text(encoding="utf-8")


def kill_and_look(
    line: list[str], output: Path, *, processes: int, temporary: Path, is_ready: Callable[[Path], bool] = has_trained
) -> None:
    """Start a command, wait until it is ready, kill -9 its process, and check that none of its processes is left."""
    mark = f"TYMPAN_TEST_MARK={output}"
    variables = {**environment(), "TYMPAN_TEST_MARK": str(output), "TMPDIR": str(temporary)}
    temporary.mkdir()
    started = subprocess.Popen(line, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while not (len(session_of(mark)) >= processes and is_ready(output)):
            assert started.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        started.kill()
        started.wait()
        deadline = time.monotonic() + LIMIT_S
        while session_of(mark) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert session_of(mark) == []
    finally:
        for pid in session_of(mark):
            os.kill(pid, signal.SIGKILL)


def test_workers_end_with_the_process_that_started_them(beeps: Path, tmp_path: Path) -> None:
    output, temporary = tmp_path / "exp", tmp_path / "temporary"
    kill_and_look(command(beeps, output, *ENDLESS, "--nproc", "2"), output, processes=3, temporary=temporary)


def test_what_a_killed_launcher_leaves_is_removed_by_the_next(beeps: Path, tmp_path: Path) -> None:
    """Its temporary files, and torch's folder of logs and error files."""
    output, temporary = tmp_path / "exp", tmp_path / "temporary"
    kill_and_look(
        command(beeps, output, *ENDLESS, "--nproc", "2", "--elastic", "1:2"), output, processes=5, temporary=temporary
    )
    assert list(temporary.glob("torchelastic_*")) == []
    assert len(list(temporary.glob("tympan-launch-*"))) == 1
    done = subprocess.run(
        command(beeps, output, "--nproc", "2", "--max_epoch", "1"),
        env={**environment(), "TMPDIR": str(temporary)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert list(temporary.glob("tympan-launch-*")) == []
    assert list(temporary.glob("torchelastic_*")) == []


def test_the_synthesizers_of_the_demo_end_with_it(tmp_path: Path) -> None:
    demo = module_command("tympan.bin.demo", ["--nj", "2", "--dir", str(tmp_path / "demo")])
    # The demo, two synthesizers, and a helper of multiprocessing
    kill_and_look(demo, tmp_path / "demo", processes=4, temporary=tmp_path / "temporary", is_ready=lambda output: True)


def test_a_job_of_run_pl_ends_with_the_launcher(beeps: Path, tmp_path: Path) -> None:
    output = tmp_path / "exp"
    run_pl = tmp_path / "run.pl"
    run_pl.write_text('#!/bin/sh\nshift 2; log=$1; shift\n"$@" > "$log" 2>&1\n')
    run_pl.chmod(0o755)
    job = [
        "--cmd",
        str(run_pl),
        "--ngpu",
        "0",
        "--log",
        str(tmp_path / "run.log"),
        "--",
        *command(beeps, output, *ENDLESS),
    ]
    line = module_command("tympan.bin.launch", job)
    kill_and_look(line, output, processes=3, temporary=tmp_path / "temporary")


@pytest.mark.slow
def test_workers_of_torchrun_end_with_it(beeps: Path, tmp_path: Path) -> None:
    output, temporary = tmp_path / "exp", tmp_path / "temporary"
    train = command(beeps, output, *ENDLESS)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", *train[1:]]
    kill_and_look(torchrun, output, processes=3, temporary=temporary)
