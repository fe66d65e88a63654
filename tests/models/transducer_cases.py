"""Transducers made by formula, the same for Tympan's tests and for benchmarks/peer_transducer.py.

This file runs in ESPnet's environment too, so it imports nothing of Tympan.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.models import st_cases

TOKENS = ["<blank>", "<unk>", *"abcdefghijkl", "<space>", "<sos/eos>"]
SAMPLES = st_cases.SAMPLES
TEXTS = ([5, 3, 8, 8, 12, 4], [7, 6, 11, 3, 9, 2, 11, 3], [4, 10, 5])
audio = st_cases.audio

_ENCODER = {
    "encoder": "conformer",
    "encoder_conf": {
        "attention_heads": 2,
        "linear_units": 12,
        "num_blocks": 2,
        "output_size": 8,
        "rel_pos_type": "latest",
        "cnn_module_kernel": 7,
        "input_layer": "conv2d2",
    },
}
_JOINT = {"joint_net_conf": {"joint_space_size": 10}}

CASES: dict[str, dict[str, Any]] = {
    "lstm": {
        **_ENCODER,
        **_JOINT,
        "decoder": "transducer",
        "decoder_conf": {"hidden_size": 9, "num_layers": 2},
        "model_conf": {"ctc_weight": 0.3},
    },
    "gru": {
        **_ENCODER,
        "joint_net_conf": {"joint_space_size": 6, "joint_activation_type": "relu", "lin_dec_bias": False},
        "decoder": "transducer",
        "decoder_conf": {"rnn_type": "gru", "hidden_size": 7},
        "model_conf": {"ctc_weight": 0.0},
    },
    "multi_blank": {
        **_ENCODER,
        **_JOINT,
        "decoder": "transducer",
        "decoder_conf": {"hidden_size": 9},
        "model_conf": {
            "ctc_weight": 0.0,
            "transducer_multi_blank_durations": [2, 4],
            "transducer_multi_blank_sigma": 0.05,
            "report_cer": False,
            "report_wer": False,
        },
    },
}
SEARCHES: dict[str, dict[str, Any]] = {"greedy": {"beam_size": 1}}
"""Options of ESPnet2's search."""


def settings_of(case: str) -> dict[str, Any]:
    """The options of a case's training configuration that are not defaults."""
    common = {
        "token_list": TOKENS,
        "frontend_conf": {"fs": 16000, "n_mels": 16},
        "normalize": "utterance_mvn",
        "token_type": "char",
    }
    return {**common, **CASES[case]}


@torch.no_grad()
def fill(model: nn.Module) -> None:
    """Values that depend on the parameter's name, with blank probable enough for texts of a usual length."""
    st_cases.fill(model)
    weights = model.state_dict()
    for name in ("joint_network.lin_out.weight", "joint_network.lin_enc.weight", "joint_network.lin_dec.weight"):
        if name in weights:
            weights[name].mul_(3.0)
    if "joint_network.lin_out.bias" in weights:
        weights["joint_network.lin_out.bias"][: len(weights["joint_network.lin_out.bias"]) - len(TOKENS) + 1] += 4.0
