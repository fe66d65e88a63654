"""Distributed training: throughput with 1 and 2 processes, cost of DDP, times to recover and to resume.

    python benchmarks/scaling.py [--steps 20]

Prints a table. The model is a Conformer of 4 x 144 on random features, with 16 utterances of 4 to 7 s per step. Each
process has one thread, so that 1 and 2 processes can be compared. The numbers are only meaningful on an idle machine
with two cores.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--worker", nargs=4, metavar=("RANK", "SIZE", "WRAP", "MEETING"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(*options.worker, steps=options.steps)
        return
    print(f"{'what':<42}{'value':>14}")
    plain = throughput(1, "plain", options.steps)
    print(f"{'1 process, frames/s':<42}{plain:>14,.0f}")
    wrapped = throughput(1, "ddp", options.steps)
    print(f"{'1 process under DDP, frames/s':<42}{wrapped:>14,.0f}")
    print(f"{'cost of DDP at world size 1':<42}{plain / wrapped - 1:>14.1%}")
    two = throughput(2, "ddp", options.steps)
    print(f"{'2 processes, frames/s':<42}{two:>14,.0f}")
    print(f"{'2 processes against 1':<42}{two / plain:>14.2f}")
    death, resume = faults()
    print(f"{'from a death to the next step, s':<42}{death:>14.1f}")
    print(f"{'from start to the first resumed step, s':<42}{resume:>14.1f}")


def throughput(size: int, wrap: str, steps: int) -> float:
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, __file__, "--steps", str(steps), "--worker"]
        workers = [
            subprocess.Popen(
                [*command, str(rank), str(size), wrap, f"{directory}/meeting"],
                env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, text=True,
            )
            for rank in range(size)
        ]  # fmt: skip
        outputs = [worker.communicate()[0] for worker in workers]
        return sum(float(output.split()[-1]) for output in outputs)


def work(rank: str, size: str, wrap: str, meeting: str, *, steps: int) -> None:
    """One process: prints the number of frames per second that it trained on."""
    sys.path.insert(0, str(ROOT / "tests" / "train"))
    import torch
    from small_asr import FeatureBatches, small_asr
    from tiny import tiny_updater
    from torch.nn.parallel import DistributedDataParallel

    from tympan.runtime.comm import Comm, Distributed, Solo
    from tympan.training.reporter import EpochReporter

    torch.set_num_threads(1)
    comm: Comm = Solo()
    if wrap == "ddp":
        comm = Distributed(
            torch.device("cpu"), backend="gloo", init_method=f"file://{meeting}", rank=int(rank), size=int(size)
        )
    updater = tiny_updater(model=small_asr(dropout=0.1, output_size=144, linear_units=576, num_blocks=4), comm=comm)
    if wrap == "ddp" and comm.size == 1:
        updater.parallel.model = DistributedDataParallel(updater.parallel.module)
    updater.parallel.model.train()
    data = FeatureBatches([16] * (steps + 3), rank=comm.rank, world_size=comm.size, frames=(400, 700))
    part = EpochReporter("train", 1, comm=comm)
    start = 0.0
    for step, batch in enumerate(data.build_iter(1)):
        if step == 3:  # the first steps allocate
            part, start = EpochReporter("train", 1, comm=comm), time.perf_counter()
        updater.learn([batch], number=1, reporter=part)
    print(part.frames / (time.perf_counter() - start))
    comm.close()


def faults() -> tuple[float, float]:
    """Seconds from kill -9 of a worker to the next logged step, and from starting a resumed run to its first step."""
    sys.path.insert(0, str(ROOT / "tests" / "integration"))
    from test_distributed import STEADY, wait_for_batch, workers_of
    from train_corpus import command, environment, make_corpus

    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        config = make_corpus(directory, utterances=200)
        output = directory / "exp"
        log = output / "train.log"

        def start(*options: str) -> subprocess.Popen[str]:
            train = command(config, output, *STEADY, "--nproc", "2", *options)
            return subprocess.Popen(train, env=environment(), stderr=subprocess.DEVNULL, text=True)

        def steps_seen() -> int:
            return len(re.findall(r"epoch:train:", log.read_text(encoding="utf-8"))) if log.exists() else 0

        def next_step(before: int, begin: float) -> float:
            while steps_seen() <= before:
                time.sleep(0.01)
            return time.monotonic() - begin

        process = start()
        wait_for_batch(output, r"1epoch:train:4-4batch", process)
        os.kill(workers_of(process.pid)[1], signal.SIGKILL)
        time.sleep(0.3)  # the current step may still be logged
        death = next_step(steps_seen(), time.monotonic()) + 0.3
        process.send_signal(signal.SIGTERM)
        process.wait()
        before, begin = steps_seen(), time.monotonic()
        process = start("--resume", "true")
        resume = next_step(before, begin)
        process.send_signal(signal.SIGTERM)
        process.wait()
        return death, resume


if __name__ == "__main__":
    main()
