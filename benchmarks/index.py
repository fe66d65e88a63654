"""Time and memory to open an index of a million utterances and to plan an epoch of it.

python benchmarks/index.py [--utterances N] [--dir DIR]
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tympan.config.batches import BatchOptions
from tympan.data.batch_plan import BATCH_TYPES, plan_batches
from tympan.data.index import UtteranceIndex
from tympan.data.schedule import BatchSchedule
from tympan.data.shapes import Shapes, read_shapes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--utterances", type=int, default=1_000_000)
    parser.add_argument(
        "--dir", type=Path, default=None, help="directory for the files (default: a temporary directory)"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.dir or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        write_corpus(folder, args.utterances)
        print(f"{args.utterances:,} utterances: wav.scp, text, speech_shape, text_shape.char\n")
        print(f"{'what':<44}{'seconds':>10}{'peak MB':>12}{'MB kept':>12}")
        for name, work in WORK.items():
            cost = in_own_process(work, folder)
            print(f"{name:<44}{cost.seconds:>10.3f}{cost.peak_mb:>12.1f}{cost.own_mb:>12.1f}")


@dataclass(frozen=True)
class Cost:
    seconds: float
    peak_mb: float
    """Increase of the peak memory, including pages of mapped files."""
    own_mb: float
    """Memory that only this process uses: the cost of one more worker."""


def write_corpus(folder: Path, count: int) -> None:
    rng = np.random.default_rng(0)
    samples = rng.gamma(4.0, 20_000, count).astype(np.int64).clip(8000, 400_000)
    tokens = samples // 4000 + rng.integers(0, 8, count)
    ids = [f"BAC009S{number // 400:05d}W{number % 400:04d}-{number:07d}" for number in range(count)]
    words = "今天天气很好我们去公园玩吧明天再说这个问题可以解决了"
    with (folder / "wav.scp").open("w") as wav, (folder / "text").open("w") as text:
        for key, length in zip(ids, tokens.tolist(), strict=True):
            wav.write(f"{key} /corpus/data/wav/train/{key[6:12]}/{key}.wav\n")
            text.write(f"{key} {(words * 8)[:length]}\n")
    for name, lengths in (("speech_shape", samples), ("text_shape.char", tokens)):
        with (folder / name).open("w") as stream:
            stream.writelines(f"{key} {length}\n" for key, length in zip(ids, lengths.tolist(), strict=True))


def open_index(folder: Path) -> UtteranceIndex:
    return UtteranceIndex(
        {"speech": folder / "wav.scp", "text": folder / "text"},
        keys=folder / "speech_shape",
    )


def read_lengths(folder: Path) -> list[Shapes]:
    ids = open_index(folder).ids
    return [read_shapes(folder / name, ids) for name in ("speech_shape", "text_shape.char")]


def look_up(folder: Path) -> Callable[[], object]:
    index = open_index(folder)
    rows = np.random.default_rng(0).integers(0, len(index), 10_000).tolist()
    return lambda: [index.value(index.row(index.id(row)), "text") for row in rows]


def plan_with(batch_type: str) -> Callable[[Path], Callable[[], object]]:
    def prepared(folder: Path) -> Callable[[], object]:
        shapes = read_lengths(folder)
        options = BatchOptions(batch_type=batch_type, batch_size=32, batch_bins=3_000_000, fold_length=(80_000, 150))
        return lambda: plan_batches(shapes, options)

    return prepared


def start_late(folder: Path) -> Callable[[], object]:
    plan = plan_batches(read_lengths(folder), BatchOptions(batch_type="numel", batch_bins=3_000_000))
    schedule = BatchSchedule(plan, seed=0, shuffle=True)
    return lambda: schedule.rows(50, schedule.num_steps(50) - 1)


WORK: dict[str, Callable[[Path], Callable[[], object]]] = {
    "build the index (first time)": lambda folder: lambda: open_index(folder),
    "open the index": lambda folder: lambda: open_index(folder),
    "read the shape files": lambda folder: lambda: read_lengths(folder),
    "find and read 10,000 texts by id": look_up,
    **{f"plan an epoch, batch type {name}": plan_with(name) for name in BATCH_TYPES},
    "reach the last step of epoch 50 directly": start_late,
}


def in_own_process(work: Callable[[Path], Callable[[], object]], folder: Path) -> Cost:
    """Cost of the work in a new process. Its inputs (lengths for a plan) count in memory, but not in time."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def run() -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        own_before = private_megabytes()
        job = work(folder)
        start = time.perf_counter()
        result = job()
        seconds = time.perf_counter() - start
        peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        own = private_megabytes() - own_before
        sender.send((seconds, peak, own))
        del result

    process = context.Process(target=run)
    process.start()
    found = receiver.recv()
    process.join()
    return Cost(*found)


def private_megabytes() -> float:
    """Memory of this process that belongs to no file (Linux)."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) / 1024


if __name__ == "__main__":
    main()
