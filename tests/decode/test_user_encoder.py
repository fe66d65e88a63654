"""The encoder of the documentation can be decoded, although it has no parameters left after its layout for oneDNN."""

from __future__ import annotations

import ast
import inspect
import re
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


def example() -> str:
    """The code in the docstring of `Encoder`."""
    lines = inspect.getdoc(Encoder).splitlines()  # type: ignore[union-attr]
    start = next(index for index, line in enumerate(lines) if line.strip() == "import torch")
    return textwrap.dedent("\n".join(line for line in lines[start:] if not line or line.startswith("    ")))


def test_the_page_shows_the_same_encoder_as_the_docstring() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "extending.md"
    (shown,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert ast.unparse(ast.parse(shown)) == ast.unparse(ast.parse(example()))


def test_the_documented_encoder_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "documented.py").write_text(example(), encoding="utf-8")
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
