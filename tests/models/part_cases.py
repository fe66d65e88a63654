"""Parts and inputs made by formula, the same for Tympan's tests and for benchmarks/peer_parts.py.

This file runs in ESPnet's environment too, so it imports nothing of Tympan.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

LENGTHS = (53, 38, 45)
"""Number of frames of each utterance."""
SAMPLES = (2000, 1570, 400)
FEATURES = 20

_SMALL = {"output_size": 8, "attention_heads": 2, "linear_units": 12, "num_blocks": 2, "cgmlp_linear_units": 16}
_KERNELS = {"multicgmlp_kernel_sizes": "3,7", "multicgmlp_merge_conv_kernel": 5}

MULTICONV: dict[str, dict[str, Any]] = {
    "concat_fusion": {**_SMALL, **_KERNELS, "rel_pos_type": "latest", "macaron_style": True},
    "concat": {**_SMALL, **_KERNELS, "multicgmlp_type": "concat", "use_linear_after_conv": True},
    "sum": {**_SMALL, **_KERNELS, "multicgmlp_type": "sum", "gate_activation": "tanh", "rel_pos_type": "latest"},
    "sum_linear": {**_SMALL, **_KERNELS, "multicgmlp_type": "sum", "multicgmlp_use_non_linear": False},
    "weighted_sum": {
        **_SMALL,
        **_KERNELS,
        "multicgmlp_type": "weighted_sum",
        "pos_enc_layer_type": "abs_pos",
        "selfattention_layer_type": "selfattn",
    },
    "one_kernel": {**_SMALL, "multicgmlp_kernel_sizes": 5, "normalize_before": False, "input_layer": "linear"},
}
SINC: dict[str, dict[str, Any]] = {
    "mel": {},
    "bark": {
        "fs": "8k",
        "out_channels": 128,
        "activation_type": "relu",
        "windowing_type": "none",
        "scale_type": "bark",
    },
}
_CONVOLUTION = {"output_size": 8, "linear_units": 12, "num_blocks": 2, "conv_wshare": 2}
CONVOLUTION: dict[str, dict[str, Any]] = {
    "short": {**_CONVOLUTION, "conv_kernel_length": [3, 5]},
    "long": {**_CONVOLUTION, "conv_kernel_length": [31, 7], "conv_usebias": True, "normalize_before": False},
    "concat": {**_CONVOLUTION, "conv_kernel_length": [7, 1], "conv_wshare": 4, "concat_after": True},
}
CONVOLUTIONS = {
    "lightweight_conv": "lightconv",
    "lightweight_conv2d": "lightconv2d",
    "dynamic_conv": "dynamicconv",
    "dynamic_conv2d": "dynamicconv2d",
}
"""Each with the name that ESPnet1 has for it."""
MLM: dict[str, dict[str, Any]] = {
    "before": {"attention_heads": 2, "linear_units": 12, "num_blocks": 2},
    "after": {"attention_heads": 2, "linear_units": 12, "num_blocks": 1, "normalize_before": False,
              "concat_after": True},
}  # fmt: skip
MASK_CTC = ((10, 0.99), (3, 0.97), (0, 0.97), (1, 0.999))
"""Iterations and threshold of its inference."""
_BLOCKS = {"output_size": 8, "attention_heads": 2, "linear_units": 12, "num_blocks": 3}
_SHORT = {"block_size": 6, "hop_size": 2, "look_ahead": 2}
BLOCKS: dict[str, dict[str, Any]] = {
    "transformer": {**_BLOCKS, **_SHORT},
    "transformer linear": {**_BLOCKS, "block_size": 20, "hop_size": 7, "look_ahead": 5, "input_layer": "linear"},
    "transformer after": {**_BLOCKS, **_SHORT, "normalize_before": False, "concat_after": True, "ctx_pos_enc": False},
    "transformer whole": {**_BLOCKS, "block_size": 0, "positionwise_layer_type": "conv1d",
                          "positionwise_conv_kernel_size": 3},
    "conformer": {**_BLOCKS, **_SHORT, "macaron_style": True, "cnn_module_kernel": 5},
    "conformer mixed": {**_BLOCKS, "block_size": 11, "hop_size": 4, "look_ahead": 3, "cnn_module_kernel": 3,
                        "positionwise_layer_type": "conv1d-linear", "activation_type": "tanh"},
    "conformer plain": {**_BLOCKS, **_SHORT, "use_cnn_module": False, "input_layer": "conv2d6"},
}  # fmt: skip
"""Contextual blocks. With 53, 38 and 45 frames and conv2d, 12, 8 and 10 frames go into the blocks."""
VOCABULARY = 11
WINDOWS: dict[str, dict[str, Any]] = {"usual": {}, "other": {"win_length": 300, "hop_length": 70, "channels": 1}}


def fill(module: nn.Module, *, keeps: tuple[str, ...] = ()) -> None:
    """Weights that depend on the name's order and the position; those whose name ends with one of `keeps` stay."""
    named = sorted(module.state_dict().items(), key=lambda item: newest_name(item[0]))
    for number, (name, tensor) in enumerate(named):
        if name.endswith(("num_batches_tracked", *keeps)):
            continue
        values = torch.sin(torch.arange(tensor.numel(), dtype=torch.float64) * 0.7 + number)
        is_scale = name.endswith(("running_var", "norm.weight", "BatchNorm.weight"))
        values = 1.0 + 0.3 * values if is_scale else 0.4 * values
        tensor.copy_(values.view(tensor.shape).to(tensor.dtype))


def newest_name(name: str) -> str:
    """The name of a parameter in the newest ESPnet2. In older versions the subsampling has a sequence of one layer."""
    return name.replace("embed.out.0.", "embed.out.")


def features(index: int, size: int = FEATURES) -> Tensor:
    """(1, frames, size) of one utterance."""
    count = LENGTHS[index]
    grid = torch.arange(count * size, dtype=torch.float64) * (0.37 + 0.11 * index)
    return torch.cos(grid).view(1, count, size).float()


def speech(index: int) -> Tensor:
    """(1, samples) of one utterance."""
    time = torch.arange(SAMPLES[index], dtype=torch.float64)
    return (0.3 * torch.sin(time * (0.05 + 0.02 * index)) + 0.1 * torch.cos(time * 0.9)).float().unsqueeze(0)


def decoder_conf(conf: dict[str, Any]) -> dict[str, Any]:
    """The decoder's keys of an encoder's configuration."""
    return {**{key: value for key, value in conf.items() if key != "output_size"}, "attention_heads": 2}


def memory(index: int, size: int = 8) -> Tensor:
    """(1, frames, size): the encoder's output for one utterance."""
    return features(index, size) * 0.5


def tokens(index: int) -> Tensor:
    """(1, length), sos first."""
    ids = (torch.arange(9 - 2 * index) * (3 + index)) % (VOCABULARY - 2) + 1
    return torch.cat([torch.tensor([VOCABULARY - 1]), ids]).unsqueeze(0)


@torch.no_grad()
def prefer_tokens(mlm: nn.Module) -> None:
    """Random weights for the decoder of Mask-CTC, with which it hardly ever predicts the mask."""
    generator = torch.Generator().manual_seed(5)
    for _, tensor in sorted(mlm.state_dict().items()):
        tensor.copy_(torch.randn(tensor.shape, generator=generator))
    mlm.output_layer.bias[-1] = -50.0


def masked(index: int) -> Tensor:
    """(1, length): tokens of which every third is the mask."""
    ids = tokens(index)[:, 1:].clone()
    ids[:, index::3] = VOCABULARY
    return ids


def posteriors(index: int, vocabulary: int = VOCABULARY) -> Tensor:
    """(frames, vocabulary): log posteriors with runs of tokens and blanks (0) and many degrees of certainty."""
    count = LENGTHS[index]
    time = torch.arange(count)
    path = torch.where(time // 3 % 3 == 2, 0, (time // 3 * (2 + index)) % (vocabulary - 2) + 1)
    sure = 2.0 + 4.0 * torch.sin(time * 0.7 + index).abs()
    logits = torch.cos(torch.arange(count * vocabulary) * 0.9).view(count, vocabulary)
    return logits.scatter_add(1, path.unsqueeze(1), sure.unsqueeze(1)).double().log_softmax(-1).float()


def prefix_log_probs(prefix: tuple[int, ...], salt: float) -> Tensor:
    """(vocabulary,): log probabilities of the token after a prefix, for a stand-in of a decoder or language model."""
    value = sum((place + 1) * token for place, token in enumerate(prefix)) * 0.37 + salt
    return (2.0 * torch.cos(torch.arange(VOCABULARY, dtype=torch.float64) * value)).log_softmax(-1)


TIME_SYNC = ((4, 0.3, 0.5, 0.0), (2, 0.7, 0.0, 0.8), (6, 0.5, 1.2, -0.4), (3, 1.0, 0.0, 0.0))
"""Beam size, CTC weight, LM weight and penalty of time-synchronous searches."""
