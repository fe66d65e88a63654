"""Parts that few recipes use, and inputs made by formula: the same for Tympan's tests and benchmarks/peer_recipes.py.

This file runs in ESPnet's environment too, so it imports nothing of Tympan.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.models import part_cases

VOCABULARY = part_cases.VOCABULARY
_ENCODER = {"output_size": 8, "attention_heads": 2, "linear_units": 12, "num_blocks": 3, "cnn_module_kernel": 3}
_LATEST = {"rel_pos_type": "latest", "pos_enc_layer_type": "rel_pos", "selfattention_layer_type": "rel_selfattn"}
TRIM: dict[str, dict[str, Any]] = {
    "legacy": {**_ENCODER, "interctc_layer_idx": [1]},
    "latest": {**_ENCODER, **_LATEST, "interctc_layer_idx": [1, 2], "interctc_use_conditioning": True},
}


def trim_posteriors(frames: int, index: int) -> Tensor:
    """(1, frames, vocabulary): posteriors whose last frames are surely blank."""
    logits = torch.cos(torch.arange(frames * VOCABULARY) * 0.9 + index).view(1, frames, VOCABULARY)
    logits[0, 1 + index :, 0] += 12.0
    return logits.softmax(-1)


_BEATS = {"embed_dim": 12, "encoder_layers": 3, "encoder_embed_dim": 16, "encoder_ffn_embed_dim": 20, "conv_pos": 8,
          "encoder_attention_heads": 2, "conv_pos_groups": 4, "num_buckets": 12, "max_distance": 20}  # fmt: skip
_PUBLISHED = {**_BEATS, "relative_position_embedding": True, "gru_rel_pos": True, "deep_norm": True}
BEATS: dict[str, dict[str, Any]] = {
    "published": {"beats_config": _PUBLISHED},
    "norm first": {"beats_config": {**_BEATS, "layer_norm_first": True, "conv_bias": True, "activation_fn": "relu"}},
    "lower layer": {"beats_config": _PUBLISHED, "max_layer": 2, "downsampling_rate": 3, "fbank_mean": 11.7,
                    "add_positional_information": True, "max_positions": 40},
    "weighted": {"beats_config": {**_BEATS, "relative_position_embedding": True},
                 "use_weighted_representation": True, "fbank_std": 9.0},
}  # fmt: skip
ADAPTER = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20,
           "conv_depthwise_kernel_size": 5, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2,
           "position_embeddings_type": "relative", "hidden_act": "swish"}  # fmt: skip
BEATS_SAMPLES = (9000, 6100, 1500)
"""The last one is repeated."""

LINEAR = {"mean": {}, "max": {"pooling": "max"}, "first": {"pooling": "CLS"}}

_SPACE = {"_name_": "s4", "d_state": 12, "n_ssm": 1, "lr": 0.0025}
_S4_LAYERS = [_SPACE, {"_name_": "mha", "n_head": 2}, {"_name_": "ff", "expand": 3}]
_S4 = {"n_layers": 2, "layer": _S4_LAYERS, "residual": "residual", "norm": "layer"}
S4: dict[str, tuple[dict[str, Any], int]] = {
    "untrained": (_S4, 0),
    "stored length": ({**_S4, "layer": [{**_SPACE, "n_ssm": 4, "lr": 0.0}, *_S4_LAYERS[1:]]}, 12),
    "longer texts": (_S4, 3),
    "norm last": ({**_S4, "prenorm": False, "n_repeat": 2, "n_layers": 1}, 0),
    "no residual": ({"n_layers": 1, "norm": "layer", "layer": [{"_name_": "s4", "d_state": 4, "activation": "relu"},
                                                             {"_name_": "ff", "activation": "tanh"}]}, 7),
}  # fmt: skip
"""The configuration, and the length for which the state space models store their output weights (0: none)."""
S4_OPTIMIZER = {"lr": 0.001, "weight_decay": 0.01}


def beats_speech(index: int) -> Tensor:
    """(1, samples) of one utterance."""
    time = torch.arange(BEATS_SAMPLES[index], dtype=torch.float64)
    noise = torch.sin(time * time * 1.2347 + index)  # energy in all bands, so that no logarithm is of a rounding error
    return (0.3 * torch.sin(time * (0.05 + 0.02 * index)) + 0.1 * noise).float().unsqueeze(0)


_CNN = {
    "norm_mode": "layer_norm",
    "conv_mode": "standard",
    "bias": False,
    "shapes": [[8, 10, 5], [12, 8, 4], [12, 4, 4]],
}
_SSL = {
    "frontend": "wav2vec_cnn",
    "frontend_conf": _CNN,
    "normalize": None,
    "preencoder": "linear",
    "preencoder_conf": {"output_size": 16},
    "encoder": "transformer",
    "encoder_conf": {"output_size": 16, "attention_heads": 2, "linear_units": 12, "num_blocks": 3,
                     "input_layer": "wav2vec", "normalize_before": False, "pos_enc_layer_type": "conv",
                     "layer_drop_rate": 0.1},
    "loss": [{"name": "hubert", "conf": {"num_classes": 5, "final_dim": 4}}],
    "util": [{"name": "mask", "conf": {"mask_prob": 0.5, "mask_length": 3}}],
}  # fmt: skip
_FIRST = {**_SSL["encoder_conf"], "normalize_before": True}
_BRANCHES = {"output_size": 16, "attention_heads": 2, "linear_units": 12, "cgmlp_linear_units": 16, "num_blocks": 2,
             "input_layer": "linear", "cgmlp_conv_kernel": 5, "use_ffn": True}  # fmt: skip
SSL: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "last": (_SSL, {}),
    "sum": (_SSL, {"multilayer_feature": True, "use_final_output": False}),
    "norm first": ({**_SSL, "normalize": "utterance_mvn", "encoder_conf": _FIRST}, {"layer": 1}),
    "e_branchformer": ({**_SSL, "encoder": "e_branchformer", "encoder_conf": _BRANCHES}, {}),
}
"""The configuration of the pretrained model, and the options of the frontend."""
SSL_SAMPLES = (3600, 2000, 2790)


def ssl_speech(index: int) -> Tensor:
    """(1, samples) of one utterance."""
    return beats_speech(index % 2)[:, : SSL_SAMPLES[index]]
