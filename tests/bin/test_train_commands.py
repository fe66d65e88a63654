"""asr_train and lm_train as a user starts them: their output, and the exit codes of mistakes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def start(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *argv], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("command", ["asr_train", "lm_train"])
def test_print_config_fed_back_prints_itself(command: str, tmp_path: Path) -> None:
    first = start("-m", f"tympan.bin.{command}", "--optim", "adam", "--print_config")
    assert first.returncode == 0
    assert "optim: adam\noptim_conf:\n    lr: 0.001\n    betas:\n    - 0.9\n    - 0.999\n" in first.stdout
    config = tmp_path / "config.yaml"
    config.write_text(first.stdout, encoding="utf-8")
    again = start("-m", "tympan", command, "--config", str(config), "--print_config")
    assert again.stdout == first.stdout
    assert again.stderr == ""


@pytest.mark.parametrize(("command", "more"), [("asr_train", ["--decoder", "transformer"]), ("lm_train", [])])
def test_mistakes_end_with_code_2_and_no_traceback(command: str, more: list[str], tmp_path: Path) -> None:
    config = tmp_path / "a.yaml"
    config.write_text("max_epoch: many\noptim: adam\noptim_conf: {beta: [0, 1]}\n", encoding="utf-8")
    argv = ["--config", str(config), "--batch-size", "3", "--output_dir", str(tmp_path / "exp"), *more]
    done = start("-m", f"tympan.bin.{command}", *argv)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "tympan: error: 3 mistakes:",
        "  unknown option '--batch-size': option names are written with '_'. Use '--batch_size'",
        f"  {config}:1: max_epoch: expects int, found 'many' (text)",
        f"  {config}:3: optim_conf.beta: the optim 'adam' has no key 'beta'. Did you mean 'betas'?",
    ]
    assert not (tmp_path / "exp").exists()


def test_a_class_of_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "my_package.py").write_text(
        "class MyEncoder:\n"
        "    def __init__(self, input_size: int, width: int = 7, rates: tuple[float, float] = (0, 1)): pass\n",
        encoding="utf-8",
    )
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from tympan.bin.main import cli; sys.exit(cli())"
    argv = ["asr_train", "--encoder", "my_package:MyEncoder", "--encoder_conf", "rates=[1, 2]", "--print_config"]
    done = start("-c", code, *argv)
    assert done.returncode == 0, done.stderr
    assert (
        "encoder: my_package:MyEncoder\nencoder_conf:\n    width: 7\n    rates:\n    - 1.0\n    - 2.0\n" in done.stdout
    )
