"""asr_train on a stand-in for an Ascend card, as a user with torch_npu would start it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml
from train_corpus import command, environment, run, weights

from tympan.training.checkpoint import read_reporter

STAND_IN = Path(__file__).parents[1] / "runtime" / "stand_in"


def test_the_command_trains_on_the_device_with_few_shapes(beeps: Path, tmp_path: Path) -> None:
    settings = yaml.safe_load(beeps.read_text(encoding="utf-8"))
    del settings["batch_type"]
    without = {"dropout_rate": 0.0, "positional_dropout_rate": 0.0}
    settings["encoder_conf"] |= without | {"attention_dropout_rate": 0.0}
    settings["decoder_conf"] |= without
    config = tmp_path / "train.yaml"
    config.write_text(yaml.safe_dump({**settings, "batch_bins": 30000, "num_buckets": 2}), encoding="utf-8")
    variables = {**environment(), "PYTHONPATH": str(STAND_IN)}
    done = subprocess.run(
        command(config, tmp_path / "npu", "--ngpu", "1", "--loss_scale", "512"),
        env=variables, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[:3000]
    assert "asr training on npu:0 (stand-in)" in done.stderr
    assert "fixed shapes: " in done.stderr
    same = run(config, tmp_path / "cpu", "--batch_type", "bucket", "--loss_scale", "512")
    assert same.returncode == 0, same.stderr
    on_card, on_cpu = (read_reporter(tmp_path / name).stats for name in ("npu", "cpu"))
    for epoch, phase in ((1, "train"), (1, "valid"), (2, "train")):
        assert on_card[epoch][phase]["loss"] == pytest.approx(on_cpu[epoch][phase]["loss"], rel=1e-3)
    assert {str(tensor.device) for tensor in weights(tmp_path / "npu" / "1epoch.pth").values()} == {"cpu"}


def test_more_cards_than_there_are(beeps: Path, tmp_path: Path) -> None:
    variables = {**environment(), "PYTHONPATH": str(STAND_IN), "STAND_IN_CARDS": "1"}
    done = subprocess.run(
        command(beeps, tmp_path, "--ngpu", "8"), env=variables, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 2
    assert "needs 8 npu device(s), but this host has 1 npu (limited by ASCEND_RT_VISIBLE_DEVICES" in done.stderr
    assert "Use --ngpu 1" in done.stderr
    assert not (tmp_path / "checkpoint.pth").exists()
    assert os.listdir(tmp_path) == []
