"""A corpus of beeps and a recognizer of a few thousand weights, to run the commands on as a user does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import soundfile
import torch
import yaml

TONES = {"a": 300.0, "b": 700.0, "c": 1500.0}
PYTHON = [sys.executable, "-m"]


def make_corpus(directory: Path, *, utterances: int = 14) -> Path:
    """Utterances of two to four tones; the transcript spells them. Returns a config file for asr_train."""
    rng = np.random.default_rng(0)
    for side, number in (("train", utterances), ("valid", 4)):
        lines: dict[str, list[str]] = {"wav.scp": [], "text": []}
        for index in range(number):
            word = "".join(rng.choice(list(TONES), size=rng.integers(2, 5)))
            name = f"{side}{index:03d}"
            path = directory / side / f"{name}.wav"
            path.parent.mkdir(parents=True, exist_ok=True)
            soundfile.write(path, _beeps(word, rng), 8000)
            lines["wav.scp"].append(f"{name} {path}\n")
            lines["text"].append(f"{name} {word}\n")
        for file, content in lines.items():
            (directory / side / file).write_text("".join(content), encoding="utf-8")
    (directory / "tokens.txt").write_text("<blank>\n<unk>\na\nb\nc\n<sos/eos>\n", encoding="utf-8")
    return write_config(directory)


def write_config(directory: Path) -> Path:
    def triples(side: str) -> list[list[str]]:
        return [
            [f"{directory}/{side}/wav.scp", "speech", "sound"],
            [f"{directory}/{side}/text", "text", "text"],
        ]

    config = {
        "token_type": "char",
        "token_list": f"{directory}/tokens.txt",
        "frontend_conf": {"fs": 8000, "n_fft": 256, "hop_length": 80, "n_mels": 16},
        "encoder": "conformer",
        "encoder_conf": {
            "output_size": 16, "attention_heads": 2, "linear_units": 32, "num_blocks": 1, "cnn_module_kernel": 7,
            "macaron_style": True, "rel_pos_type": "latest", "pos_enc_layer_type": "rel_pos",
            "selfattention_layer_type": "rel_selfattn",
        },
        "decoder": "transformer",
        "decoder_conf": {"attention_heads": 2, "linear_units": 32, "num_blocks": 1},
        "model_conf": {"ctc_weight": 0.3},
        "optim": "adam",
        "optim_conf": {"lr": 0.003},
        "scheduler": "warmuplr",
        "scheduler_conf": {"warmup_steps": 10},
        "batch_type": "unsorted",
        "batch_size": 2,
        "num_workers": 0,
        "max_epoch": 2,
        "use_matplotlib": False,
        "use_tensorboard": False,
        "num_att_plot": 0,
        "train_data_path_and_name_and_type": triples("train"),
        "valid_data_path_and_name_and_type": triples("valid"),
    }  # fmt: skip
    path = directory / "train.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def command(config: Path, output: Path, *options: str, kind: str = "asr") -> list[str]:
    return [*PYTHON, f"tympan.bin.{kind}_train", "--config", str(config), "--output_dir", str(output), *options]


def run(config: Path, output: Path, *options: str, kind: str = "asr") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(config, output, *options, kind=kind), env=environment(), capture_output=True, text=True, timeout=280
    )


def weights(path: Path) -> dict[str, torch.Tensor]:
    loaded: dict[str, torch.Tensor] = torch.load(path, weights_only=True)
    return loaded


def same_weights(a: Path, b: Path) -> bool:
    first, second = weights(a), weights(b)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def _beeps(word: str, rng: np.random.Generator) -> np.ndarray:
    length = 1200
    time_s = np.arange(length) / 8000
    parts = [0.3 * np.sin(2 * np.pi * TONES[letter] * time_s) * np.hanning(length) for letter in word]
    return np.concatenate(parts) + rng.normal(0, 0.003, length * len(word))
