"""A recipe of a dozen sentences and a model of a few thousand weights, for the tests that run commands."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TRAIN = """
encoder: conformer
encoder_conf: {output_size: 16, attention_heads: 2, linear_units: 16, num_blocks: 1, input_layer: conv2d6,
  macaron_style: true, cnn_module_kernel: 7, rel_pos_type: latest}
decoder: transformer
decoder_conf: {attention_heads: 2, linear_units: 16, num_blocks: 1}
model_conf: {ctc_weight: 0.3}
batch_type: unsorted
batch_size: 4
max_epoch: 2
optim: adam
num_att_plot: 0
num_workers: 0
use_tensorboard: false
use_matplotlib: false
best_model_criterion: [[valid, acc, max]]
"""
LM = """
lm_conf: {nlayers: 1, unit: 8}
batch_type: unsorted
batch_size: 4
max_epoch: 1
num_workers: 0
use_tensorboard: false
use_matplotlib: false
best_model_criterion: [[valid, loss, min]]
"""
DECODE = "{beam_size: 2, ctc_weight: 0.5, lm_weight: 0.1, ngram_weight: 0.1, maxlenratio: -6}"


def recipe(directory: Path, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tympan.bin.recipe", *arguments]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == code, f"{done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert "Traceback" not in done.stderr
    return done


def steps_run(output: str) -> list[str]:
    return re.findall(r"^  (.*?): done in ", output, re.MULTILINE)


def aishell(directory: Path, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    options = ["--data_url", "archives", "--ngpu", "0", "--nj", "1", "--speeds", "1.0", "--n_average", "2"]
    return recipe(directory, "aishell", *options, *arguments, code=code)


def new_workplace(directory: Path, archives: Path) -> Path:
    shutil.copytree(archives, directory / "archives")
    shutil.copytree(ROOT / "egs" / "aishell" / "asr1" / "conf", directory / "conf", symlinks=True)
    for name, content in (("train", TRAIN), ("lm", LM), ("decode", DECODE)):
        (directory / "conf" / f"{name}.yaml").unlink()
        (directory / "conf" / f"{name}.yaml").write_text(content)
    return directory
