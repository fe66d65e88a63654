"""The task in docs/tasks.md: its code is taken from the page and trained as a user would do it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tasks.md"
TONES = {"yes": 400.0, "no": 1300.0}


def block(language: str) -> str:
    found = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(found) == 1, f"expected one {language} block"
    return str(found[0])


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("keywords")
    (directory / "keywords.py").write_text(block("python"), encoding="utf-8")
    (directory / "train.yaml").write_text(block("yaml"), encoding="utf-8")
    rng = np.random.default_rng(0)
    for side, number in (("train", 12), ("valid", 6)):
        (directory / side).mkdir()
        recordings, labels = [], []
        for index in range(number):
            word = ("yes", "no")[index % 2]
            length = int(rng.integers(2400, 4000))
            samples = 0.2 * np.sin(2 * np.pi * TONES[word] * np.arange(length) / 8000) + rng.normal(0, 0.01, length)
            soundfile.write(directory / side / f"{index}.wav", samples, 8000)
            recordings.append(f"{side}{index:02d} {side}/{index}.wav\n")
            labels.append(f"{side}{index:02d} {word}\n")
        (directory / side / "wav.scp").write_text("".join(recordings), encoding="utf-8")
        (directory / side / "label").write_text("".join(labels), encoding="utf-8")
    return directory


def run(command: str, directory: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        ["bash", "-c", command], cwd=directory, env=environment, capture_output=True, text=True, check=False
    )


def accuracy(directory: Path, epoch: int) -> float:
    manifest = json.loads((directory / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["task"] == "keyword"
    assert manifest["task_class"] == "keywords:KeywordTask"
    return float(manifest["epochs"][str(epoch)]["valid"]["acc"])


def test_the_file_has_fewer_than_100_lines() -> None:
    assert len(block("python").splitlines()) < 100


def test_the_commands_of_the_page(workplace: Path) -> None:
    commands = block("bash").splitlines()
    outputs = {}
    for command in commands:
        done = run(command, workplace)
        assert done.returncode == 0, f"{command}\n{done.stderr[-3000:]}"
        outputs[command] = done.stdout
    assert "--hidden_size" in outputs[commands[0]]
    assert "keywords to distinguish" in outputs[commands[0]]
    assert "hidden_size: 32" in outputs[commands[1]]
    assert accuracy(workplace / "exp", 4) == 1.0
    assert accuracy(workplace / "exp_two", 3) > 0.5
    resumed = (workplace / "exp" / "train.log").read_text(encoding="utf-8")
    assert "resumed at epoch 4, batch 0" in resumed


def test_two_processes_train_as_one(workplace: Path) -> None:
    weights = []
    for processes in (1, 2):
        output = workplace / f"same{processes}"
        done = run(
            f"tympan train keywords:KeywordTask --config train.yaml --output_dir {output} --nproc {processes} "
            "--train_dtype float64 --max_epoch 2",
            workplace,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        weights.append(torch.load(output / "2epoch.pth", weights_only=True))
    for name, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][name], tensor, rtol=1e-9, atol=1e-12)


def test_as_a_script_with_two_processes(workplace: Path) -> None:
    done = run("python keywords.py --config train.yaml --output_dir script --max_epoch 1 --nproc 2", workplace)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (workplace / "script" / "1epoch.pth").is_file()
    wrong = run("python keywords.py --config train.yaml --output_dir script --labels one", workplace)
    assert wrong.returncode == 2
    assert wrong.stderr.strip() == "tympan: error: --labels: needs at least two keywords, found 1"


def test_reproduce_asks_before_it_runs_the_users_class(workplace: Path) -> None:
    trained = run("tympan train keywords:KeywordTask --config train.yaml --output_dir again --max_epoch 1", workplace)
    assert trained.returncode == 0, trained.stderr[-3000:]
    refused = run("tympan reproduce again", workplace)
    assert refused.returncode == 2
    assert "--allow_import true" in refused.stderr
    done = run("tympan reproduce again --allow_import true", workplace)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "identical: all" in done.stdout


def test_a_task_that_does_not_exist(tmp_path: Path) -> None:
    done = run("tympan train asrr", tmp_path)
    assert done.returncode == 2
    assert "there is no task 'asrr'. Did you mean 'asr'?" in done.stderr
    assert "the first argument must be the task" in run("tympan train --max_epoch 2", tmp_path).stderr


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("class Odd:\n    pass\n", "broken:Odd is not a task: a task inherits from tympan.tasks.Task"),
        (
            "from tympan.tasks import Task\nclass Odd(Task):\n    name = 'odd'\n",
            "does not define config_class, required_data, build_model",
        ),
    ],
)
def test_a_class_that_is_no_task_is_named(code: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(code, encoding="utf-8")
    done = run("tympan train broken:Odd --max_epoch 1", tmp_path)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr


def test_a_model_that_takes_every_tensor_and_one_that_returns_no_loss(workplace: Path) -> None:
    code = block("python")
    forward = "def forward(self, speech: Tensor, speech_lengths: Tensor, label: Tensor) -> Loss:\n"
    names = "        speech, speech_lengths, label = (tensors[n] for n in ('speech', 'speech_lengths', 'label'))\n"
    every = code.replace(forward, f"def forward(self, **tensors: Tensor) -> Loss:\n{names}")
    assert every != code
    (workplace / "every.py").write_text(every, encoding="utf-8")
    done = run("tympan train every:KeywordTask --config train.yaml --output_dir every --max_epoch 1", workplace)
    assert done.returncode == 0, done.stderr[-2000:]
    (workplace / "lossless.py").write_text(code.replace("return Loss(", "return ("))
    done = run("tympan train lossless:KeywordTask --config train.yaml --output_dir lossless --max_epoch 1", workplace)
    assert done.returncode == 2, done.stderr[-2000:]
    assert "forward of KeywordModel must return a tympan.models.loss.Loss, found tuple" in done.stderr


def test_python_raises_where_training_failed(workplace: Path) -> None:
    broken = block("python").replace(
        "        features, lengths", "        raise RuntimeError('boom')\n        features, lengths"
    )
    (workplace / "failing.py").write_text(broken, encoding="utf-8")
    script = (
        "import tympan\n"
        "try:\n"
        "    tympan.train('failing:KeywordTask', 'train.yaml', output_dir='fails', nproc=2, max_restarts=0)\n"
        "except RuntimeError as error:\n"
        "    print('raised:', error)\n"
    )
    (workplace / "script.py").write_text(script, encoding="utf-8")
    done = run("python script.py", workplace)
    assert "raised: training failed with exit code 1" in done.stdout, done.stderr[-2000:]
