"""Speech translation models and inputs made by formula, the same for Tympan's tests and for benchmarks/peer_st.py.

This file runs in ESPnet's environment too, so it imports nothing of Tympan.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

TOKENS = ["<blank>", "<unk>", "▁", *"abcdefghijklmnop", "<space>", "<sos/eos>"]
SRC_TOKENS = ["<blank>", "<unk>", *"uvwxyz", "<space>", "<sos/eos>"]
SAMPLES = (9000, 14321, 6500)
TEXTS = ([5, 3, 8, 8, 12, 19, 4], [7, 6, 15, 3, 9, 2, 11, 3], [4, 10, 5])
SRC_TEXTS = ([3, 3, 5, 8, 2], [6, 2, 4, 7, 3, 5], [2, 7])

_ATTENTION = {"attention_heads": 2, "linear_units": 12, "num_blocks": 2}
_DECODER = {"decoder": "transformer", "decoder_conf": {**_ATTENTION, "num_blocks": 1}}
_SRC_DECODER = {"extra_asr_decoder": "transformer", "extra_asr_decoder_conf": {**_ATTENTION, "num_blocks": 1}}
_CONFORMER = {
    "encoder": "conformer",
    "encoder_conf": {**_ATTENTION, "output_size": 8, "rel_pos_type": "latest", "cnn_module_kernel": 7},
}
_TRANSFORMER = {"encoder": "transformer", "encoder_conf": {**_ATTENTION, "output_size": 8, "input_layer": "conv2d2"}}
_TEXT_ENCODER = {
    "extra_mt_encoder": "transformer",
    "extra_mt_encoder_conf": {**_ATTENTION, "num_blocks": 1, "output_size": 8, "input_layer": "embed"},
}

CASES: dict[str, dict[str, Any]] = {
    "attention_only": {**_CONFORMER, **_DECODER},
    "asr_attention": {**_TRANSFORMER, **_DECODER, **_SRC_DECODER, "model_conf": {"asr_weight": 0.3, "lsm_weight": 0.1}},
    "asr_both": {**_CONFORMER, **_DECODER, **_SRC_DECODER, "model_conf": {"asr_weight": 0.3, "mtlalpha": 0.5}},
    "asr_ctc": {
        **_CONFORMER,
        **_DECODER,
        **_SRC_DECODER,
        "model_conf": {"asr_weight": 0.3, "mtlalpha": 1.0, "length_normalized_loss": True},
    },
    "st_ctc": {**_TRANSFORMER, **_DECODER, "model_conf": {"st_mtlalpha": 0.3, "lang_token_id": 2}},
    "st_ctc_only": {**_CONFORMER, **_DECODER, "model_conf": {"st_mtlalpha": 1.0}},
    "hier": {
        **_CONFORMER,
        **_DECODER,
        **_SRC_DECODER,
        "hier_encoder": "conformer",
        "hier_encoder_conf": {**_CONFORMER["encoder_conf"], "num_blocks": 1, "input_layer": None},
        "model_conf": {"asr_weight": 0.4, "mtlalpha": 0.3, "st_mtlalpha": 0.2, "lsm_weight": 0.1},
    },
    "hier_smaller": {
        **_TRANSFORMER,
        **_DECODER,
        **_SRC_DECODER,
        "hier_encoder": "transformer",
        "hier_encoder_conf": {**_ATTENTION, "num_blocks": 1, "output_size": 6, "input_layer": "conv2d2"},
        "model_conf": {"asr_weight": 0.4, "mtlalpha": 0.3},
    },
    "mt": {
        **_TRANSFORMER,
        **_DECODER,
        **_TEXT_ENCODER,
        "extra_mt_decoder": "transformer",
        "extra_mt_decoder_conf": {**_ATTENTION, "num_blocks": 1},
        "model_conf": {"mt_weight": 0.2},
    },
    "mt_and_asr": {
        **_CONFORMER,
        **_DECODER,
        **_SRC_DECODER,
        **_TEXT_ENCODER,
        "model_conf": {"mt_weight": 0.2, "asr_weight": 0.3, "mtlalpha": 0.5, "lsm_weight": 0.1},
    },
    "rnn": {
        "encoder": "vgg_rnn",
        "encoder_conf": {"hidden_size": 8, "output_size": 8, "num_layers": 1},
        "decoder": "rnn",
        "decoder_conf": {"hidden_size": 8, "att_conf": {"adim": 8, "aconv_chans": 2, "aconv_filts": 3}},
        "extra_asr_decoder": "rnn",
        "extra_asr_decoder_conf": {"hidden_size": 8, "att_conf": {"atype": "dot", "adim": 8}},
        "model_conf": {"asr_weight": 0.3, "mtlalpha": 0.5},
    },
}
LM = {
    "lm": "transformer",
    "lm_conf": {"pos_enc": None, "embed_unit": 8, "att_unit": 8, "head": 2, "unit": 12, "layer": 1},
}
SEARCHES: dict[str, dict[str, Any]] = {
    "default": {},
    "ctc": {"ctc_weight": 0.3},
    "lm": {"lm_weight": 0.4, "penalty": 0.2},
    "lengths": {"maxlenratio": 0.5, "minlenratio": 0.2, "penalty": -0.1},
}
"""Options of a search besides beam_size and nbest."""

CASE_SEARCHES = {
    "attention_only": ["default", "lm", "lengths"],
    "st_ctc": ["default", "ctc"],
    "hier": ["ctc"],
    "hier_smaller": ["default"],
    "mt_and_asr": ["lm"],
    "rnn": ["default"],
}
BEAM_SIZE = 5


def settings_of(case: str) -> dict[str, Any]:
    """The options of a case's training configuration that are not defaults."""
    common = {
        "token_list": TOKENS,
        "src_token_list": SRC_TOKENS,
        "frontend_conf": {"fs": 16000, "n_mels": 16},
        "normalize": "utterance_mvn",
        "token_type": "char",
        "src_token_type": "char",
    }
    return {**common, **CASES[case]}


def audio(index: int) -> Tensor:
    """Two sweeping tones with weak noise: (samples,). Without the noise, empty mel bands would depend on rounding."""
    time_s = np.arange(SAMPLES[index], dtype=np.float64) / 16000
    low = np.sin(2 * np.pi * (200 + 90 * index + 700 * time_s) * time_s)
    high = np.sin(2 * np.pi * (2500 - 900 * time_s) * time_s) * np.sin(2 * np.pi * (3 + index) * time_s)
    noise = _uniform(f"noise {index}", SAMPLES[index])
    return torch.from_numpy((0.3 * low + 0.2 * high + 0.02 * noise).astype(np.float32))


def newest_name(name: str) -> str:
    """ESPnet2 202511 keeps the subsampling's projection in a pair with the positional encoding, newer ones do not."""
    return name.replace("embed.out.0.", "embed.out.")


@torch.no_grad()
def fill(model: nn.Module) -> None:
    """Values that depend only on the parameter's name and the index, not on version or order."""
    for name, tensor in model.state_dict().items():
        if not tensor.is_floating_point() or "logmel" in name:
            continue
        values = torch.from_numpy(_uniform(newest_name(name), tensor.numel())).view(tensor.shape)
        if tensor.dim() > 1:
            values = values * 1.5 * (3.0 * tensor.size(0) / tensor.numel()) ** 0.5
        elif name.endswith("running_var"):
            values = 1.0 + 0.5 * values
        elif "norm" in name and name.endswith("weight"):
            values = 1.0 + 0.2 * values
        else:
            values = 0.3 * values
        tensor.copy_(values)


def _uniform(name: str, count: int) -> np.ndarray:
    """Numbers in [-1, 1) from a hash of name and index (the finalizer of MurmurHash3)."""
    seed = np.uint64(0)
    with np.errstate(over="ignore"):
        for byte in name.encode():
            seed = seed * np.uint64(1099511628211) + np.uint64(byte)
        bits = np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + seed
        for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
            bits = (bits ^ (bits >> np.uint64(33))) * np.uint64(factor)
        bits ^= bits >> np.uint64(33)
    return (bits >> np.uint64(11)).astype(np.float64) / 2.0**52 - 1.0
