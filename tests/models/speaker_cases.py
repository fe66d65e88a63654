"""Models for several speakers, and inputs made by formula: for Tympan's tests and benchmarks/peer_speakers.py.

This file runs in ESPnet's environment too, so it imports nothing of Tympan.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.models import part_cases

_BLOCKS = {"output_size": 8, "attention_heads": 2, "linear_units": 12, "num_blocks": 2, "num_blocks_sd": 1}
ENCODERS: dict[str, dict[str, Any]] = {
    "two": {**_BLOCKS, "num_inf": 2},
    "three": {**_BLOCKS, "num_inf": 3, "num_blocks_sd": 2, "input_layer": "linear"},
    "after": {**_BLOCKS, "num_inf": 2, "normalize_before": False, "concat_after": True, "input_layer": "conv2d2"},
    "convolution": {**_BLOCKS, "num_inf": 1, "positionwise_layer_type": "conv1d", "positionwise_conv_kernel_size": 3},
    "none": {**_BLOCKS, "output_size": part_cases.FEATURES, "num_inf": 2, "input_layer": None},
}
TOKENS = ["<blank>", "<unk>", *"abcdefg", "<space>", "<sos/eos>"]
_DECODER = {"attention_heads": 2, "linear_units": 12, "num_blocks": 1}


def _model(speakers: int, **model_conf: Any) -> dict[str, Any]:
    names = ["text", *(f"text_spk{number}" for number in range(2, speakers + 1))]
    return {
        "token_list": TOKENS,
        "token_type": "char",
        "input_size": part_cases.FEATURES,
        "frontend": None,
        "normalize": None,
        "preprocessor": "multi",
        "preprocessor_conf": {"text_name": names},
        "encoder": "transformer_multispkr",
        "encoder_conf": {**_BLOCKS, "num_inf": speakers},
        "ctc_conf": {"reduce": False},
        "decoder": "transformer",
        "decoder_conf": _DECODER,
        "model": "pit_espnet",
        "model_conf": {"num_inf": speakers, "num_ref": speakers, "lsm_weight": 0.1, **model_conf},
    }


MODELS: dict[str, dict[str, Any]] = {
    "two": _model(2, ctc_weight=0.2),
    "three": _model(3, ctc_weight=0.5, length_normalized_loss=True, lang_token_id=3),
    "ctc": {**_model(2, ctc_weight=1.0), "decoder": None, "decoder_conf": {}},
    "one": _model(1, ctc_weight=0.3),
}
UTTERANCES = 5
SEARCHES: dict[str, dict[str, Any]] = {
    "joint": {"ctc_weight": 0.3, "beam_size": 4, "nbest": 3},
    "attention": {"ctc_weight": 0.0, "beam_size": 3, "nbest": 2, "maxlenratio": 0.5, "penalty": 0.2},
}
"""Decodings of the model `two`."""


def text_name(speaker: int) -> str:
    """The data name of a speaker's text, counted from 0."""
    return "text" if speaker == 0 else f"text_spk{speaker + 1}"


def batch(speakers: int) -> dict[str, Tensor]:
    """Utterances of the same number of frames, because ESPnet2's results depend on padding, and texts of any length."""
    frames, size = part_cases.LENGTHS[0], part_cases.FEATURES
    grid = torch.arange(frames * size, dtype=torch.float64)
    speech = torch.stack([torch.cos(grid * (0.37 + 0.05 * i)).view(frames, size) for i in range(UTTERANCES)])
    tensors = {"speech": speech.float(), "speech_lengths": torch.full((UTTERANCES,), frames)}
    for speaker in range(speakers):
        lengths = [1 + (i + 2 * speaker) % 5 for i in range(UTTERANCES)]
        rows = [(torch.arange(n) * (2 + speaker) + 3 * i + speaker) % 7 + 2 for i, n in enumerate(lengths)]
        tensors[text_name(speaker)] = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)
        tensors[f"{text_name(speaker)}_lengths"] = torch.tensor(lengths)
    return tensors


def fill(model: torch.nn.Module) -> None:
    """Weights by formula, and larger ones for CTC, so that each speaker's output has other posteriors."""
    part_cases.fill(model)
    for name, tensor in model.state_dict().items():
        if name.endswith("ctc_lo.weight") and "pit" not in name:
            tensor.mul_(4.0)
