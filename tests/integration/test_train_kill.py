"""After kill -9 at random moments, many times, the weights equal those of an uninterrupted run."""

from __future__ import annotations

import random
import subprocess
import time
from pathlib import Path

import pytest
from train_corpus import command, environment, run, same_weights

OPTIONS = ("--save_interval_steps", "1", "--log_interval", "1")


@pytest.fixture(scope="module")
def undisturbed(beeps: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("undisturbed")
    done = run(beeps, output, *OPTIONS)
    assert done.returncode == 0, done.stderr
    return output


def kill_many_times(config: Path, output: Path, *options: str, kills: int, seed: int) -> int:
    """Start, kill -9 at a random moment after a step was saved, start again ..., and let the last one finish."""
    chance = random.Random(seed)
    landed = 0
    for _ in range(kills):
        process = subprocess.Popen(
            command(config, output, *OPTIONS, "--resume", "true", *options),
            env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        before = _stamp(output)
        deadline = time.monotonic() + 100
        while process.poll() is None and _stamp(output) == before and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(chance.uniform(0.0, 0.12))
        process.kill()
        landed += process.wait() == -9
    done = run(config, output, *OPTIONS, "--resume", "true", *options)
    assert done.returncode == 0, done.stderr
    return landed


def _stamp(output: Path) -> int:
    path = output / "checkpoint.pth"
    return path.stat().st_mtime_ns if path.exists() else 0


@pytest.mark.parametrize("workers", [0, 1])
def test_killed_and_resumed_equals_undisturbed(beeps: Path, undisturbed: Path, tmp_path: Path, workers: int) -> None:
    landed = kill_many_times(beeps, tmp_path, "--num_workers", str(workers), kills=2, seed=workers)
    assert landed == 2
    assert same_weights(undisturbed / "2epoch.pth", tmp_path / "2epoch.pth")
    assert same_weights(undisturbed / "valid.loss.ave.pth", tmp_path / "valid.loss.ave.pth")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_many_kills_equal_undisturbed(beeps: Path, undisturbed: Path, tmp_path: Path, workers: int) -> None:
    landed = kill_many_times(beeps, tmp_path, "--num_workers", str(workers), kills=8, seed=workers)
    assert landed >= 6
    assert same_weights(undisturbed / "2epoch.pth", tmp_path / "2epoch.pth")
    assert same_weights(undisturbed / "1epoch.pth", tmp_path / "1epoch.pth")
