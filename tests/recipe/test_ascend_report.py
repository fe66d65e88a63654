"""`tympan ascend_report` writes one file with versions, settings, speed and operators."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tympan.bin.ascend_report import main
from tympan.errors import UserError
from tympan.recipe.ascend_report import experiment_facts

SMALL = ["--device", "cpu", "--steps", "2", "--batch_size", "2", "--frames", "48", "--blocks", "1"]


def test_everything_is_in_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "exp"
    run.mkdir()
    manifest = {"device": "cpu", "epochs": {"1": {"train": {"loss": 3.0, "train_time": 0.5}}}}
    (run / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    (run / "config.yaml").write_text("batch_size: 4\n", encoding="utf-8")
    (run / "train.log").write_text("".join(f"line {index}\n" for index in range(300)), encoding="utf-8")
    output = tmp_path / "report.json"
    assert main([*SMALL, "--exp", str(run), "--output", str(output)]) == 0
    report = json.loads(output.read_text(encoding="utf-8"))
    assert report["machine"]["torch"] == torch.__version__
    assert list(report["machine"]["ascend"]) == ["torch", "torch-npu", "CANN", "driver", "cards"]
    assert report["experiment"]["manifest"] == manifest
    assert report["experiment"]["config"] == "batch_size: 4\n"
    log = report["experiment"]["log"]
    assert (log[0], log[100], log[-1], len(log)) == ("line 0", "...", "line 299", 201)
    trial = report["trial"]
    assert len(trial["seconds"]) == 2
    assert trial["frames_per_second"] == pytest.approx(96 / trial["seconds"][1], rel=0.01)
    assert trial["new_shapes_in_the_second_step"] == 0
    assert trial["operators"]["aten::convolution"]["calls"] >= 1
    assert 0 < trial["loss"] < 1000
    assert "attach this file" in capsys.readouterr().out


def test_a_run_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no such directory"):
        main(["--device", "cpu", "--steps", "0", "--exp", str(tmp_path / "none"), "--output", str(tmp_path / "r.json")])
    assert not (tmp_path / "r.json").exists()


def test_files_of_a_run_that_are_damaged(tmp_path: Path) -> None:
    run = tmp_path / "exp"
    run.mkdir()
    (run / "manifest.json").write_text("{}", encoding="utf-8")
    (run / "config.yaml").write_bytes(b"a: \xff\n")
    (run / "train.log").write_bytes(b"caf\xe9\n" * 201)
    facts = experiment_facts(run)
    assert facts["config"] == "a: \ufffd\n"
    assert facts["log"] == [*["caf\ufffd"] * 100, "...", *["caf\ufffd"] * 100]
    (run / "train.log").unlink()
    (run / "train.log").symlink_to("/dev/zero")
    with pytest.raises(UserError, match=r"train\.log: is a device, but a file is expected"):
        experiment_facts(run)
