"""Collect versions, settings, speed and operators of an Ascend card in one file, to report a result."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tympan.config import option, parse_args


@dataclass(frozen=True)
class Options:
    output: Path = option(Path("ascend_report.json"), help="file to write")
    exp: Path | None = option(None, help="directory of a training run, to include its settings, speed and log")
    device: Literal["cpu", "cuda", "npu", "mps"] | None = option(
        None, help="kind of device; null: the accelerator that is found"
    )
    steps: int = option(20, help="number of training steps to measure; 0: none", least=0)
    batch_size: int = option(32, help="number of utterances per batch", least=1)
    frames: int = option(512, help="number of feature frames of the longest utterance", least=32)
    blocks: int = option(12, help="number of encoder blocks; the decoder has half as many", least=1, most=1000)
    train_dtype: Literal["float16", "bfloat16", "float32", "O1", "O2"] = option(
        "float32", help="number format; O1, O2 and float16 use the loss scale 512"
    )


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_args(Options, argv, prog="tympan ascend_report", description=__doc__)
    from tympan.recipe.ascend_report import experiment_facts, machine_facts, trial_facts
    from tympan.runtime.atomic import atomic_write
    from tympan.runtime.device import choose_kind, device_of

    kind = choose_kind(ngpu=0 if options.device == "cpu" else 1, device=options.device)
    device = device_of(kind, local_rank=0)
    report = {"machine": machine_facts(device)}
    if options.exp is not None:
        report["experiment"] = experiment_facts(options.exp)
    if options.steps > 0:
        print(f"{options.steps} training steps on {report['machine']['device']} ...", flush=True)
        report["trial"] = trial_facts(
            device,
            steps=options.steps,
            batch_size=options.batch_size,
            frames=options.frames,
            blocks=options.blocks,
            train_dtype=options.train_dtype,
        )
    with atomic_write(options.output) as stream:
        json.dump(report, stream, indent=2, ensure_ascii=False)
        stream.write("\n")
    if "trial" in report:
        trial = report["trial"]
        print(
            f"first step {trial['seconds'][0]:.2f} s, then {trial['frames_per_second']:g} frames/s; "
            f"{len(trial['operators'])} operators, {trial['synchronizations']} waits per step"
        )
    print(f"{options.output}: attach this file to your report")
    return 0


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
