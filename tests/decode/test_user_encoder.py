"""The encoder that the documentation shows is decoded, too: laid out for oneDNN it has no parameters left."""

from __future__ import annotations

import inspect
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from tympan.config.asr import AsrTrainConfig
from tympan.config.read import make_training_config
from tympan.decode.recognizer import Recognizer
from tympan.models.build import build_asr_model
from tympan.models.parts import Encoder


def test_the_documented_encoder_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = inspect.getdoc(Encoder).splitlines()  # type: ignore[union-attr]
    start = next(index for index, line in enumerate(lines) if line.strip() == "import torch")
    code = textwrap.dedent("\n".join(line for line in lines[start:] if not line or line.startswith("    ")))
    (tmp_path / "documented.py").write_text(code, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    options = {
        "token_list": ["<blank>", "<unk>", "a", "b", "<sos/eos>"],
        "token_type": "char",
        "encoder": "documented:MyEncoder",
        "encoder_conf": {"output_size": 8},
        "decoder": None,
        "model_conf": {"ctc_weight": 1.0},
    }
    model = build_asr_model(make_training_config(AsrTrainConfig, options=options))
    torch.save(model.state_dict(), tmp_path / "model.pth")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(options), encoding="utf-8")
    recognizer = Recognizer.from_pretrained(tmp_path, allow_import=True, search="ctc_greedy")
    noise = np.random.default_rng(0).normal(0, 0.1, 16000).astype(np.float32)
    hypothesis = recognizer(noise, rate=16000)
    assert set(hypothesis.tokens) <= set(options["token_list"])
    plain = Recognizer.from_pretrained(tmp_path, allow_import=True, search="ctc_greedy", dtype="float64")
    assert hypothesis.tokens == plain(noise, rate=16000).tokens
