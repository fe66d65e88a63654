"""A corpus of beeps and a recognizer trained on it for a few steps, to fine-tune."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))

from train_corpus import make_corpus

import tympan


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with `train`, `valid`, the model `exp`, and `new`: the same recordings, with ç for c."""
    directory = tmp_path_factory.mktemp("tuning")
    config = make_corpus(directory, utterances=16)
    tympan.train("asr", config, output_dir=directory / "exp", max_epoch=6)
    for side in ("train", "valid"):
        (directory / "new" / side).mkdir(parents=True)
        (directory / "new" / side / "wav.scp").write_text((directory / side / "wav.scp").read_text())
        text = (directory / side / "text").read_text()
        lines = [line.split() for line in text.splitlines()]
        (directory / "new" / side / "text").write_text("".join(f"{a} {b.replace('c', 'ç')}\n" for a, b in lines))
    return directory
