"""Golden models of ESPnet2: configuration, weights, inputs and expected values."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import soundfile
import torch
import yaml
from torch import Tensor

from tympan.config.text import TextConfig
from tympan.models.build import build_asr_model
from tympan.models.hybrid import HybridModel
from tympan.models.weights import load_weights

MODELS = ("conformer", "transformer", "e_branchformer", "branchformer", "vgg_rnn", "ctc_only")

DEFAULTS: dict[str, Any] = {
    "init": None,
    "input_size": None,
    "ctc_conf": {},
    "frontend": "default",
    "frontend_conf": {},
    "specaug": None,
    "specaug_conf": {},
    "normalize": "utterance_mvn",
    "normalize_conf": {},
    "model": "espnet",
    "model_conf": {},
    "preencoder": None,
    "preencoder_conf": {},
    "encoder": "rnn",
    "encoder_conf": {},
    "decoder": None,
    "decoder_conf": {},
    "postencoder": None,
    "postencoder_conf": {},
    "text": TextConfig(token_list=None, token_type="char"),
}


def config_of(**given: Any) -> Any:
    """The part of a training configuration that the model needs."""
    return SimpleNamespace(**{**DEFAULTS, **given})


@dataclass(frozen=True)
class Golden:
    model: HybridModel
    speech: list[Tensor]
    tensors: dict[str, Tensor]
    losses: list[dict[str, float]]

    def text(self, index: int) -> Tensor:
        return self.tensors[f"text_{index}"]


def load_golden(golden: Path, name: str) -> Golden:
    folder = golden / "espnet2" / name
    config = config_of(**yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8")))
    model = build_asr_model(config)
    model.load_state_dict(load_weights(folder / "model.pth"))
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    names = expected["utterances"]
    speech = [torch.from_numpy(soundfile.read(golden / "kaldi" / f"{name}.wav", dtype="float32")[0]) for name in names]
    tensors = {key: torch.from_numpy(value) for key, value in np.load(folder / "tensors.npz").items()}
    losses = [expected["losses_single_utterance"][name] for name in names]
    return Golden(model.eval(), speech, tensors, losses)


def pad(rows: list[Tensor], value: float = 0) -> tuple[Tensor, Tensor]:
    """A padded batch and its lengths."""
    lengths = torch.tensor([len(row) for row in rows])
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value), lengths
