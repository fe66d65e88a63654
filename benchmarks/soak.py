"""Kill a run repeatedly: memory and open files must not grow, and the weights must equal an uninterrupted run.

    python benchmarks/soak.py [--minutes 10]

Trains with two processes on a corpus of beeps. For two thirds of the time it kills one of them with kill -9 at random
moments; in the last third it measures the memory and the open files of a worker. Then this run and an uninterrupted
one are trained to the same epoch, and their weights must be equal bit for bit. It takes about twice the given minutes.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "integration"))

SETTLED_STEPS = 20
"""Number of steps after which a worker has allocated its memory. Seconds are not reliable on a busy machine."""


@dataclass(frozen=True)
class Usage:
    """Of one process."""

    memory_mb: float
    open_files: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="duration of the interrupted run in minutes")
    options = parser.parse_args()
    from test_distributed import STEADY, largest_difference
    from train_corpus import command, environment, make_corpus

    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        config = make_corpus(directory, utterances=40)
        output, quiet = directory / "disturbed", directory / "quiet"
        several = (*STEADY, "--nproc", "2", "--max_restarts", "100000", "--resume", "true")

        def train(place: Path, *given: str) -> None:
            subprocess.run(command(config, place, *given), env=environment(), check=True, stderr=subprocess.DEVNULL)

        endless = command(config, output, *several, "--max_epoch", "1000000")
        process = subprocess.Popen(endless, env=environment(), stderr=subprocess.DEVNULL)
        deaths = disturb(process, seconds=40 * options.minutes)
        early, late = watch(process, output / "train.log", seconds=20 * options.minutes)
        process.send_signal(signal.SIGTERM)
        process.wait()
        log = (output / "train.log").read_text(encoding="utf-8")
        last = 1 + max((int(number) for number in re.findall(r"(\d+)epoch results", log)), default=0)
        train(output, *several, "--max_epoch", str(last))
        train(quiet, *several, "--max_epoch", str(last))
        difference = largest_difference(quiet / f"{last}epoch.pth", output / f"{last}epoch.pth")
    steps = len(re.findall(r"epoch:train:", log))
    grown = late.memory_mb / early.memory_mb - 1
    print(
        f"{deaths} deaths in {options.minutes:g} minutes, {last} epochs, {steps} steps logged (repeated ones included)"
    )
    print(
        f"memory of a worker: {early.memory_mb:.0f} MB when settled, {late.memory_mb:.0f} MB at the end ({grown:+.1%})"
    )
    print(f"its open files: {early.open_files} and {late.open_files}")
    print(f"largest difference of a weight from the uninterrupted run: {difference:.2e}")
    is_good = deaths > 0 and grown < 0.05 and late.open_files <= early.open_files and difference == 0
    print("good" if is_good else "FAILED: memory or open files grew, or the weights differ")
    return 0 if is_good else 1


def disturb(process: subprocess.Popen[bytes], *, seconds: float) -> int:
    """Kill a random worker at random moments. Returns the number of kills."""
    from test_distributed import workers_of

    chance = random.Random(0)
    deaths = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        workers = workers_of(process.pid)
        if len(workers) == 2:
            time.sleep(chance.uniform(0.0, 12.0))
            try:
                os.kill(chance.choice(workers), signal.SIGKILL)
                deaths += 1
            except ProcessLookupError:
                continue
        time.sleep(0.5)
    return deaths


def watch(process: subprocess.Popen[bytes], log: Path, *, seconds: float) -> tuple[Usage, Usage]:
    """Memory and open files of the first worker when it has settled, and some seconds later."""
    from test_distributed import workers_of

    while len(workers := workers_of(process.pid)) < 2:
        time.sleep(0.2)
    settled = steps_in(log) + SETTLED_STEPS
    while steps_in(log) < settled and process.poll() is None:
        time.sleep(0.2)
    early = usage(workers[0])
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        time.sleep(0.5)
    return early, usage(workers[0])


def steps_in(log: Path) -> int:
    return len(re.findall(r"epoch:train:", log.read_text(encoding="utf-8"))) if log.exists() else 0


def usage(pid: int) -> Usage:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    found = re.search(r"VmRSS:\s+(\d+)", status)
    assert found is not None
    return Usage(int(found[1]) / 1024, len(os.listdir(f"/proc/{pid}/fd")))


if __name__ == "__main__":
    sys.exit(main())
