"""Long runs: the whole demo, and some minutes of the recipe on real AISHELL recordings."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_recipe import ROOT, recipe

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def test_demo_learns_unseen_sentences(tmp_path: Path) -> None:
    pytest.importorskip("espeakng_loader", reason="the extra 'demo' is not installed")
    command = [sys.executable, "-m", "tympan.bin.demo", "--dir", "demo"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    rates = {name: float(rate) for name, rate in re.findall(r"^(\w+): CER ([\d.]+) %", done.stdout, re.MULTILINE)}
    assert rates.keys() == {"dev", "test"}
    assert rates["test"] <= 10.0
    line = next(line for line in done.stdout.splitlines() if line.startswith("transcribe with it: "))
    model, recording = line.split(" transcribe ")[1].split()
    heard = subprocess.run(
        [sys.executable, "-m", "tympan.bin.transcribe", model, recording],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    said = (tmp_path / "demo" / "data" / "test" / "text").read_text(encoding="utf-8").split()[1]
    assert len(set(said) & set(heard.stdout)) >= len(set(said)) // 2


def test_real_aishell_recordings(real_data: Path, tmp_path: Path) -> None:
    """Two epochs, so that the loss falls and every stage processes real recordings."""
    shutil.copytree(ROOT / "egs" / "aishell" / "asr1" / "conf", tmp_path / "conf")
    small = ["--train_config", "conf/small/train.yaml", "--lm_config", "conf/small/lm.yaml"]
    small += ["--decode_config", "conf/small/decode.yaml", "--tag", "small", "--n_average", "1", "--speeds", "1.0"]
    small += ["--asr_args", "--max_epoch 2", "--lm_args", "--max_epoch 2", "--inference_args", "--search ctc_greedy"]
    url = (real_data / "aishell_sample").as_uri()
    said = recipe(tmp_path, "aishell", "--stage", "-1", "--data_url", url, "--ngpu", "0", *small).stdout
    assert "train: 724 utterances of 2 speakers" in said
    assert "dev: 91 utterances of 2 speakers" in said
    assert re.search(r"^dev: CER [\d.]+ %", said, re.MULTILINE)
    losses = re.findall(r"\[train\].*?\bloss=([\d.]+)", (tmp_path / "exp/train_pytorch_small/train.log").read_text())
    assert float(losses[-1]) < float(losses[0])


def test_the_ascend_script_on_real_recordings(real_data: Path, tmp_path: Path) -> None:
    """The port's own command, on the CPU: from the archives to the closing lines and logs."""
    shutil.copytree(ROOT / "egs" / "aishell" / "asr1", tmp_path / "asr1", ignore=shutil.ignore_patterns("data", "exp"))
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = ["bash", "./test/train_full_1p.sh", "--stage=-1", f"--data_path={tmp_path / 'corpus'}", "--device", "cpu"]
    command += ["--data_url", (real_data / "aishell_sample").as_uri(), "--train_config", "conf/small/train.yaml"]
    command += ["--lm_config", "conf/small/lm.yaml", "--decode_config", "conf/small/decode.yaml", "--speeds", "1.0"]
    command += ["--n_average", "1", "--nj", "2", "--asr_args", "--max_epoch 1 --num_iters_per_epoch 20"]
    command += ["--lm_args", "--max_epoch 1", "--inference_args", "--search ctc_greedy"]
    done = subprocess.run(
        command, cwd=tmp_path / "asr1", env=environment, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "------------------ Final result ------------------" in done.stdout
    assert re.search(r"^Final Performance iters/sec : [\d.]+$", done.stdout, re.MULTILINE)
    logs = sorted(path.name for path in (tmp_path / "asr1" / "test" / "output" / "0").iterdir())
    assert [name for name in logs if name.endswith("_1p_acc.log")], logs
    assert [name for name in logs if name.endswith("_1p_loss.txt")], logs
