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


def beats_speech(index: int) -> Tensor:
    """(1, samples) of one utterance."""
    time = torch.arange(BEATS_SAMPLES[index], dtype=torch.float64)
    noise = torch.sin(time * time * 1.2347 + index)  # energy in all bands, so that no logarithm is of a rounding error
    return (0.3 * torch.sin(time * (0.05 + 0.02 * index)) + 0.1 * noise).float().unsqueeze(0)
