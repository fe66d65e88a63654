"""From folders of recordings to a transcript with four commands and no editing, as a new user does it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tympan.data.folder import read_folder
from tympan.data.kaldi_dir import DataDir
from tympan.errors import UserError
from tympan.runtime.stop import EXIT_REQUEUE

WORDS = {"GO": 300.0, "NO": 900.0, "A": 2000.0}
ENVIRONMENT = {
    "OMP_NUM_THREADS": "2",
    **os.environ,
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
}


def run(command: list[str | Path], directory: Path) -> str:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False, env=ENVIRONMENT)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def interrupted(command: list[str | Path], directory: Path, *, when: str) -> int:
    """Press Ctrl-C when the output contains a text: a terminal sends SIGINT to all processes. Returns the code."""
    with subprocess.Popen(
        command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENVIRONMENT,
        start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            if when in line:
                os.killpg(process.pid, signal.SIGINT)
                break
        said = process.stdout.read()
    assert "run the same command again to continue" in said
    return process.returncode


def beep_folder(folder: Path, *, speakers: int, each: int) -> Path:
    """SPEAKER/NUMBER.wav with a tone for every word, and SPEAKER/NUMBER.txt with the words."""
    rng = np.random.default_rng(speakers)
    for speaker in range(speakers):
        place = folder / f"{folder.name}{speaker}"
        place.mkdir(parents=True)
        for number in range(each):
            words = rng.choice(list(WORDS), size=rng.integers(2, 5)).tolist()
            time_s = np.arange(4000) / 16000
            tones = [0.3 * np.sin(2 * np.pi * WORDS[word] * time_s) * np.hanning(len(time_s)) for word in words]
            soundfile.write(place / f"{number}.wav", np.concatenate(tones), 16000)
            (place / f"{number}.txt").write_text(" ".join(words) + "\n", encoding="utf-8")
    return folder


def test_a_folder_is_a_data_directory(tmp_path: Path) -> None:
    found = read_folder(beep_folder(tmp_path / "train", speakers=2, each=2))
    assert list(found.utt2spk.items()) == [
        ("train0-0", "train0"), ("train0-1", "train0"), ("train1-0", "train1"), ("train1-1", "train1"),
    ]  # fmt: skip
    assert set(" ".join(found.text.values()).split()) <= WORDS.keys()
    (tmp_path / "train" / "train0" / "1.txt").unlink()
    (tmp_path / "train" / "train1" / "0.txt").write_text("\n")
    with pytest.raises(
        UserError, match=r"1\.wav: there is no transcript 1\.txt beside it\n.*0\.txt: the file is empty"
    ):
        read_folder(tmp_path / "train")


def test_four_commands(tmp_path: Path) -> None:
    beep_folder(tmp_path / "raw" / "train", speakers=3, each=8)
    beep_folder(tmp_path / "raw" / "dev", speakers=1, each=4)
    said = run(["tympan", "recipe", "new", "mine", "--train_dir", "raw/train", "--dev_dir", "raw/dev"], tmp_path)
    assert "24 utterances of 3 speakers" in said
    assert "token_type phn (less than 3 h and few unknown words" in said
    assert "all checks passed" in run(["mine/run.sh", "--check"], tmp_path)
    # The default is 95 epochs for so little data. Ctrl-C stops in the second one, and the same command continues there.
    training: list[str | Path] = ["mine/run.sh", "--asr_args", "--max_epoch 3 --num_workers 0", "--nj", "1"]
    assert interrupted(training, tmp_path, when="2/3epoch started") == EXIT_REQUEUE
    said = run(training, tmp_path)
    assert "resumed at epoch 2" in (tmp_path / "mine" / "exp" / "train_pytorch_train" / "train.log").read_text()
    assert re.search(r"^dev: CER [\d.]+ %, WER [\d.]+ %", said, re.MULTILINE)
    line = next(line for line in said.splitlines() if line.startswith("transcribe with it: "))
    command = line.removeprefix("transcribe with it: ").split()
    assert set(run(command, tmp_path).split()) <= WORDS.keys(), "copied to the shell that mine/run.sh was typed in"


@pytest.mark.slow
@pytest.mark.timeout(3 * 3600)
def test_an4_as_if_it_were_unknown(real_data: Path, tmp_path: Path) -> None:
    """Characters and no lexicon: a dev WER of at most 15 % after an hour of two cores' time."""
    for name in ("train_nodev", "train_dev"):
        data = DataDir.read(real_data / "an4" / name).located()
        for utterance, audio in data.wav.items():
            place = tmp_path / "raw" / name / data.utt2spk[utterance]
            place.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(audio, place / f"{utterance}.flac")
            (place / f"{utterance}.txt").write_text(data.text[utterance], encoding="utf-8")
    began_s = os.times().children_user
    run(["tympan", "recipe", "new", "mine", "--train_dir", "raw/train_nodev", "--dev_dir", "raw/train_dev"], tmp_path)
    run(["mine/run.sh", "--check"], tmp_path)
    said = run(["mine/run.sh"], tmp_path)
    found = re.search(r"^dev: CER [\d.]+ %, WER ([\d.]+) %", said, re.MULTILINE)
    assert found is not None
    assert float(found[1]) <= 15.0
    assert os.times().children_user - began_s <= 2 * 3600
    line = next(line for line in said.splitlines() if line.startswith("transcribe with it: "))
    assert run(line.removeprefix("transcribe with it: ").split(), tmp_path).strip()
