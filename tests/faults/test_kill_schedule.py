"""kill -9 at random moments of a decode: no utterance is lost or doubled, and nothing half written stays."""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from train_corpus import command, environment, run

from tympan.runtime.child import module_command


@pytest.fixture(scope="module")
def trained(beeps: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("trained")
    done = run(beeps, output, "--max_epoch", "1")
    assert done.returncode == 0, done.stderr
    return output


def decode(beeps: Path, trained: Path, output: Path) -> list[str]:
    return module_command(
        "tympan.bin.asr_inference",
        [
            "--asr_model_file", str(trained / "1epoch.pth"), "--output_dir", str(output), "--batch_size", "1",
            "--data_path_and_name_and_type", f"{beeps.parent}/train/wav.scp,speech,sound", "--beam_size", "2",
            "--maxlenratio", "-5",
        ],
    )  # fmt: skip


def kill_many_times(line: list[str], output: Path, *, kills: int, seed: int, whole: Path) -> int:
    """Start, kill at a random moment, start again ..., and let the last one finish. Returns how many were killed.

    A decode that finished before its kill is compared with the undisturbed one, and the next one starts from scratch.
    """
    chance, landed = random.Random(seed), 0
    journal = output / "logdir" / "results.jsonl"
    for number in range(kills):
        process = subprocess.Popen(line, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        size = journal.stat().st_size if journal.exists() else 0
        deadline = time.monotonic() + 100
        # Every third is killed while it starts; the others once they have written something.
        while number % 3 != 2 and process.poll() is None and time.monotonic() < deadline:
            if journal.exists() and journal.stat().st_size > size:
                break
            time.sleep(0.002)
        time.sleep(chance.uniform(0.0, 0.05 if number % 3 != 2 else 3.0))
        process.kill()
        landed += process.wait() == -9
        if process.returncode == 0:
            compare(output, whole)
            shutil.rmtree(output)
    done = subprocess.run(line, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return landed


def check(beeps: Path, trained: Path, directory: Path, *, kills: int, seed: int) -> None:
    whole, killed = directory / "whole", directory / "killed"
    done = subprocess.run(decode(beeps, trained, whole), env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    line = decode(beeps, trained, killed)
    assert kill_many_times(line, killed, kills=kills, seed=seed, whole=whole) >= kills // 2
    compare(killed, whole)


def compare(killed: Path, whole: Path) -> None:
    for name in ("text", "token_int", "score", "1best_recog/text"):
        assert (killed / name).read_text() == (whole / name).read_text()
    assert len((killed / "text").read_text().splitlines()) == 14
    assert list(killed.rglob(".*")) == []


def test_killed_decoding_equals_undisturbed(beeps: Path, trained: Path, tmp_path: Path) -> None:
    check(beeps, trained, tmp_path, kills=2, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(3))
def test_many_kills_of_decoding_equal_undisturbed(beeps: Path, trained: Path, tmp_path: Path, seed: int) -> None:
    check(beeps, trained, tmp_path, kills=25, seed=seed)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_many_kills_of_training_leave_nothing_behind(beeps: Path, tmp_path: Path) -> None:
    chance = random.Random(5)
    line = command(beeps, tmp_path, "--resume", "true", "--max_epoch", "4", "--save_interval_steps", "1")
    for _ in range(25):
        process = subprocess.Popen(line, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(chance.uniform(1.0, 8.0))
        process.kill()
        process.wait()
    done = run(beeps, tmp_path, "--resume", "true", "--max_epoch", "4")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
