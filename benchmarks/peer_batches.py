"""Compare the batches of Tympan with those of ESPnet2's samplers over a grid of options and corpora.

usage: python benchmarks/peer_batches.py --env DIR [--golden FILE]

DIR is ESPnet's environment (made by `peer_espnet.py --env DIR --setup_only`). This script runs itself there to make
the batches, and then compares. `--golden` writes a sample of them: tests/data/golden_batches.json, so that a test needs
no ESPnet.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

TYPES = ("unsorted", "sorted", "folded", "length", "numel")
EVERY = 31
"""Every n-th case of short corpora is written to the golden file."""
Case = dict[str, Any]


def cases() -> Iterator[Case]:
    """Lengths that are correlated with those of the texts or not, and the options to compare."""
    for number, (kind, count, spread) in enumerate(itertools.product(TYPES, (1, 7, 40, 150), ("linked", "free"))):
        rng = np.random.default_rng(number)
        speech = rng.integers(100, 900, count)
        text = speech // 20 + rng.integers(0, 3, count) if spread == "linked" else rng.integers(0, 60, count)
        sizes = [(3, 2000), (8, 6000), (11, 25000), (20, 100000)]
        orders = ("ascending", "descending")
        for (size, bins), least, drop, inner, outer in itertools.product(
            sizes, (1, 2, 3), (False, True), orders, orders
        ):
            yield {
                "speech": speech.tolist(),
                "text": text.tolist(),
                "dims": [3 if size == 8 else 1, 1 if size == 3 else 11],
                "options": {"batch_type": kind, "batch_size": size, "batch_bins": bins, "fold_length": [300, 20],
                            "min_batch_size": least, "drop_last_iter": drop, "sort_in_batch": inner,
                            "sort_batch": outer},
            }  # fmt: skip


def espnet_batches(case: Case, directory: Path) -> list[list[int]] | None:
    """ESPnet2's batches; None if it stops with an error."""
    from espnet2.samplers.build_batch_sampler import build_batch_sampler

    files = []
    for name, dim in zip(("speech", "text"), case["dims"], strict=True):
        path = directory / f"{name}_shape"
        path.write_text("".join(f"u{row:05} {length},{dim}\n" for row, length in enumerate(case[name])))
        files.append(str(path))
    options = case["options"]
    try:
        sampler = build_batch_sampler(
            type=options["batch_type"],
            shape_files=files,
            fold_lengths=options["fold_length"],
            batch_size=options["batch_size"],
            batch_bins=options["batch_bins"],
            sort_in_batch=options["sort_in_batch"],
            sort_batch=options["sort_batch"],
            drop_last=options["drop_last_iter"],
            min_batch_size=options["min_batch_size"],
        )
    except (IndexError, AssertionError):
        return None
    return [[int(key[1:]) for key in batch] for batch in sampler]


def tympan_batches(case: Case) -> list[list[int]]:
    from tympan.config.batches import BatchOptions
    from tympan.data.batch_plan import plan_batches
    from tympan.data.shapes import Shapes

    shapes = [
        Shapes(name, np.array(case[name], dtype=np.int64), dim)
        for name, dim in zip(("speech", "text"), case["dims"], strict=True)
    ]
    plan = plan_batches(shapes, BatchOptions(**case["options"]))
    return [plan.batch(number).tolist() for number in range(len(plan))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", type=Path, help="ESPnet's virtual environment")
    parser.add_argument("--golden", type=Path, help="file for a sample of the batches")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside is not None:
        with tempfile.TemporaryDirectory() as directory:
            made = [espnet_batches(case, Path(directory)) for case in cases()]
        options.inside.write_text(json.dumps(made))
        return 0
    if options.env is None:
        parser.error("--env is needed")
    with tempfile.TemporaryDirectory() as directory:
        answer = Path(directory) / "batches.json"
        subprocess.run([options.env / "bin" / "python", __file__, "--inside", answer], check=True)
        expected = json.loads(answer.read_text())
    total, same, failed = Counter[str](), Counter[str](), Counter[str]()
    for case, batches in zip(cases(), expected, strict=True):
        kind = case["options"]["batch_type"]
        total[kind] += 1
        failed[kind] += batches is None
        same[kind] += batches is not None and tympan_batches(case) == batches
    for kind in TYPES:
        print(f"{kind}: {same[kind]} of {total[kind] - failed[kind]} equal; ESPnet2 fails in {failed[kind]} more")
    if options.golden is not None:
        pairs = [{**case, "batches": batches} for case, batches in zip(cases(), expected, strict=True) if batches]
        short = [pair for pair in pairs if len(pair["speech"]) <= 40]
        lines = ",\n".join(json.dumps(pair, separators=(",", ":")) for pair in short[::EVERY])
        options.golden.write_text(f"[\n{lines}\n]\n")
    return 0 if all(same[kind] == total[kind] - failed[kind] for kind in TYPES) else 1


if __name__ == "__main__":
    sys.exit(main())
