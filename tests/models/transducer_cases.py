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
_BEAM = {"beam_size": 4, "nbest": 4}
_WITH_LM = {**_BEAM, "lm_weight": 0.4}
SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {"beam_size": 1},
    "default": {**_BEAM, "search_type": "default"},
    "default_by_score": {**_BEAM, "search_type": "default", "score_norm": False},
    "tsd": {**_BEAM, "search_type": "tsd", "max_sym_exp": 3},
    "tsd_by_length": {**_BEAM, "search_type": "tsd", "score_norm_during": True},
    "alsd": {**_BEAM, "search_type": "alsd", "u_max": 20},
    "alsd_by_length": {**_BEAM, "search_type": "alsd", "u_max": 8, "score_norm_during": True},
    "nsc": {**_BEAM, "search_type": "nsc"},
    "nsc_two_steps": {**_BEAM, "search_type": "nsc", "nstep": 2, "prefix_alpha": 3},
    "maes": {**_BEAM, "search_type": "maes"},
    "maes_three_steps": {
        **_BEAM, "search_type": "maes", "nstep": 3, "prefix_alpha": 2, "expansion_gamma": 3.5, "expansion_beta": 1,
    },
    "lm_default": {**_WITH_LM, "search_type": "default"},
    "lm_tsd": {**_WITH_LM, "search_type": "tsd"},
    "lm_alsd": {**_WITH_LM, "search_type": "alsd"},
    "lm_nsc": {**_WITH_LM, "search_type": "nsc", "nstep": 2},
}  # fmt: skip
"""What ESPnet2's search is given. Its `maes` with a language model keeps an old state of it, so it is left out."""
BEAM_SEARCHES = {
    "lstm": [name for name in SEARCHES if name != "greedy" and "default" not in name],
    "gru": [name for name in SEARCHES if name != "greedy"],
}
"""By case. ESPnet2's `default` takes minutes for the other model, where the blank is less likely."""
LM = {"unit": 6, "nlayers": 1}
LENGTHS = (24, 9, 17)
"""Frames of the utterances that the beam searches get."""


@torch.no_grad()
def fill_for_beams(model: nn.Module) -> None:
    """Less certain than `fill`, with a likely blank: without one, ESPnet2's `default` search does not end."""
    st_cases.fill(model)
    weights = model.state_dict()
    weights["joint_network.lin_dec.weight"].mul_(2.0)
    weights["joint_network.lin_out.weight"].mul_(2.0)
    weights["joint_network.lin_out.bias"][0] += 3.0


def memories(model: nn.Module) -> list[torch.Tensor]:
    """Stand-ins for encoder outputs (frames, size) of three utterances."""
    size = model.state_dict()["joint_network.lin_enc.weight"].size(1)
    values = st_cases._uniform("memory", 3 * 24 * size)
    return [
        row[:length] for row, length in zip(torch.from_numpy(values).view(3, 24, size).float(), LENGTHS, strict=True)
    ]


LONG_LENGTHS = (70, 45, 30)
LONG_SEARCHES = ("default", "default_by_score", "lm_default", "tsd", "nsc_two_steps", "maes")
"""For texts of up to 10 tokens, with the model of case `gru`."""


@torch.no_grad()
def fill_for_long_texts(model: nn.Module) -> None:
    """Tokens are likely at some frames: more certain than `fill_for_beams`, and the prediction has more influence."""
    st_cases.fill(model)
    weights = model.state_dict()
    weights["joint_network.lin_enc.weight"].mul_(3.0)
    weights["joint_network.lin_dec.weight"].mul_(4.0)
    weights["joint_network.lin_out.weight"].mul_(3.0)
    weights["joint_network.lin_out.bias"][0] += 2.5


def long_memories(model: nn.Module) -> list[torch.Tensor]:
    size, longest = model.state_dict()["joint_network.lin_enc.weight"].size(1), max(LONG_LENGTHS)
    values = torch.from_numpy(st_cases._uniform("long memory", 3 * longest * size)).view(3, longest, size).float()
    return [row[:length] for row, length in zip(values, LONG_LENGTHS, strict=True)]


@torch.no_grad()
def fill_lm(lm: nn.Module) -> None:
    """Values by name. Texts begin with sos in ESPnet2's `default`, with blank in its others: both are the same here."""
    st_cases.fill(lm)
    embedding = lm.state_dict()["encoder.weight"]
    embedding[0] = embedding[-1]


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
