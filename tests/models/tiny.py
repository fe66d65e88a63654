"""Tiny models and batches for tests of behaviour."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.models.golden_espnet2 import config_of, pad
from tympan.models.build import build_asr_model
from tympan.models.hybrid import HybridModel

TOKENS = ["<blank>", "<unk>", *"abcdefg", "<space>", "<sos/eos>"]
ENCODER = {"output_size": 16, "attention_heads": 2, "linear_units": 24, "num_blocks": 2, "rel_pos_type": "latest"}
DECODER = {"attention_heads": 2, "linear_units": 24, "num_blocks": 2}


def tiny_model(**given: Any) -> HybridModel:
    """A Conformer on 20 features, without dropout unless given."""
    no_dropout = {"dropout_rate": 0.0, "positional_dropout_rate": 0.0}
    encoder_conf = given.pop("encoder_only", None) or {**ENCODER, **no_dropout, **given.pop("encoder_conf", {})}
    decoder_conf = given.pop("decoder_only", None) or {**DECODER, **no_dropout, **given.pop("decoder_conf", {})}
    conf = {"encoder": "conformer", "decoder": "transformer", "input_size": 20, "normalize": None, **given}
    torch.manual_seed(0)
    tokens = conf.pop("token_list", TOKENS)
    config = config_of(token_list=tokens, encoder_conf=encoder_conf, decoder_conf=decoder_conf, **conf)
    return build_asr_model(config)


def tiny_batch(lengths: tuple[int, ...] = (60, 41, 33, 52), size: int = 20) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    speech, speech_lengths = pad([torch.randn(length, size, generator=generator) for length in lengths])
    text, text_lengths = pad(
        [torch.randint(2, 9, (3 + index % 3,), generator=generator) for index in range(len(lengths))], value=-1
    )
    return {"speech": speech, "speech_lengths": speech_lengths, "text": text, "text_lengths": text_lengths}


def rows_of(batch: dict[str, Tensor], rows: slice) -> dict[str, Tensor]:
    return {name: tensor[rows] for name, tensor in batch.items()}
