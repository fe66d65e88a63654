"""A long run that is killed again and again: memory must not grow, and the weights must be those of a quiet run.

    python benchmarks/soak.py [--minutes 10] [--epochs 200]

Trains two processes on a corpus of beeps, kills one with kill -9 every few seconds, and prints the deaths, the steps,
the memory of a worker early and late in its life, and whether the result equals that of one undisturbed process.
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
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "integration"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="how long to disturb; then the run may finish")
    parser.add_argument("--epochs", type=int, default=200)
    options = parser.parse_args()
    from test_distributed import STEADY, largest_difference, workers_of
    from train_corpus import command, environment, make_corpus

    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        config = make_corpus(directory, utterances=40)
        common = (*STEADY, "--max_epoch", str(options.epochs), "--keep_nbest_models", "1")
        quiet = command(config, directory / "quiet", *common)
        subprocess.run(quiet, env=environment(), check=True, stderr=subprocess.DEVNULL)
        output = directory / "disturbed"
        disturbed = command(config, output, *common, "--nproc", "2", "--max_restarts", "100000")
        process = subprocess.Popen(disturbed, env=environment(), stderr=subprocess.DEVNULL)
        deaths, early, late = disturb(process, workers_of, minutes=options.minutes)
        code = process.wait()
        steps = len(re.findall(r"epoch:train:", (output / "train.log").read_text(encoding="utf-8")))
        model = f"{options.epochs}epoch.pth"
        difference = largest_difference(directory / "quiet" / model, output / model)
    print(f"exit code {code}, {deaths} deaths, {steps} steps logged (repeated ones included)")
    print(f"memory of a worker: {early:.0f} MB when young, {late:.0f} MB when old")
    print(f"largest difference of a weight from the quiet run: {difference:.2e}")


def disturb(process: subprocess.Popen[bytes], workers_of, *, minutes: float) -> tuple[int, float, float]:  # type: ignore[no-untyped-def]
    """Kill a random worker now and then; returns the deaths and the memory after two seconds and before each death."""
    chance = random.Random(0)
    deaths, early, late = 0, 0.0, 0.0
    end = time.monotonic() + 60 * minutes
    while time.monotonic() < end and process.poll() is None:
        workers = workers_of(process.pid)
        if len(workers) < 2:
            time.sleep(0.2)
            continue
        time.sleep(8.0)
        victim = chance.choice(workers)
        early = early or memory_mb(victim)
        time.sleep(chance.uniform(2.0, 12.0))
        late = memory_mb(victim) or late
        try:
            os.kill(victim, signal.SIGKILL)
            deaths += 1
        except ProcessLookupError:
            continue
    return deaths, early, late


def memory_mb(pid: int) -> float:
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return 0.0
    found = re.search(r"VmRSS:\s+(\d+)", text)
    return int(found[1]) / 1024 if found else 0.0


if __name__ == "__main__":
    main()
