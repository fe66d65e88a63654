"""The final lines and log files (test/output/0) of the Ascend port's test scripts, from a finished experiment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tympan.errors import UserError
from tympan.files import read_json
from tympan.runtime.atomic import atomic_write

NETWORK = "Tympan"
_LOSS = re.compile(r"\d+epoch:train:\S+: .*?\bloss=([0-9.e+-]+)")


@dataclass(frozen=True)
class TestRun:
    """Figures of one training run. `error_rates` is CER by set, empty for a performance run."""

    cards: int
    batch_size: int
    device: str
    iterations_a_second: float
    losses: list[float]
    error_rates: Mapping[str, float]
    seconds: float

    @property
    def case(self) -> str:
        return f"{NETWORK}_bs{self.batch_size}_{self.cards}p"


def read_training(directory: Path) -> tuple[float, list[float], str]:
    """Iterations per second without warm-up, logged losses, and device of an experiment."""
    path = directory / "manifest.json"
    if not path.is_file():
        raise UserError(f"{path} is missing: training did not finish in {directory} (run --stage train).")
    manifest = read_json(path, "the manifest of a run")
    epochs = [stats["train"] for _, stats in sorted(manifest.get("epochs", {}).items(), key=lambda item: int(item[0]))]
    if not epochs:
        raise UserError(f"{path}: no epoch finished in {directory}.")
    steady = epochs[1:] or epochs  # the first epoch includes warm-up: caches, compilation
    seconds_a_step = sum(stats["train_time"] for stats in steady) / len(steady)
    log = (directory / "train.log").read_text(encoding="utf-8")
    losses = [float(found) for found in _LOSS.findall(log)] or [stats["loss"] for stats in epochs]
    return 1.0 / seconds_a_step, losses, manifest["device"]


def closing_lines(run: TestRun) -> list[str]:
    """The final lines of the port's scripts."""
    lines = ["------------------ Final result ------------------"]
    lines.append(f"Final Performance iters/sec : {run.iterations_a_second:.3f}")
    if run.error_rates:
        test, dev = run.error_rates.get("test"), run.error_rates.get("dev")
        shown = " ".join("-" if rate is None else f"{rate:.1f}" for rate in (test, dev))
        lines.append(f"Final Train Accuracy : {shown}")
    lines.append(f"E2E Training Duration sec : {run.seconds:.0f}")
    return lines


def write_logs(run: TestRun, output: Path) -> list[Path]:
    """`<case>_acc.log` (or `_perf.log`) with the port's keys, and `train_<case>_loss.txt`."""
    accuracy = " ".join(f"{run.error_rates[name]:.1f}" for name in ("test", "dev") if name in run.error_rates)
    entries = {
        "Network": NETWORK,
        "RankSize": run.cards,
        "BatchSize": run.batch_size,
        "DeviceType": run.device,
        "CaseName": run.case,
        "ActualFPS": f"{run.iterations_a_second:.3f}",
        "TrainingTime": f"{1 / run.iterations_a_second:.3f}",
        "TrainAccuracy": accuracy,
        "ActualLoss": f"{run.losses[-1]:.4f}",
        "E2ETrainingTime": f"{run.seconds:.0f}",
    }
    if not run.error_rates:
        del entries["TrainAccuracy"]
    log = output / f"{run.case}_{'acc' if run.error_rates else 'perf'}.log"
    losses = output / f"train_{run.case}_loss.txt"
    with atomic_write(log) as stream:
        stream.writelines(f"{name} = {value}\n" for name, value in entries.items())
    with atomic_write(losses) as stream:
        stream.writelines(f"{loss}\n" for loss in run.losses)
    return [log, losses]
