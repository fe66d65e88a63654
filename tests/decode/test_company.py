"""Random models of every kind: an utterance's n-best list is the same by itself and in any batch."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from tympan.config.asr import AsrTrainConfig
from tympan.config.lm import LmTrainConfig
from tympan.config.read import load_training_config
from tympan.decode.load import LoadedModel
from tympan.decode.options import BatchLimits, DecodeOptions
from tympan.decode.recognizer import Recognizer
from tympan.decode.speech_input import speech_input
from tympan.errors import UserError
from tympan.models.build import build_asr_model
from tympan.models.lm.build import build_lm
from tympan.text.codec import build_codec

TOKENS = ["<blank>", "<unk>", *"abcdefghijklmnopqrstuvwxyz", "<sos/eos>"]
CONFORMER = {
    "encoder": "conformer",
    "encoder_conf": {"output_size": 16, "attention_heads": 2, "linear_units": 24, "num_blocks": 2},
}
MODELS: dict[str, dict[str, Any]] = {
    "transformer": {
        **CONFORMER,
        "decoder": "transformer",
        "decoder_conf": {"attention_heads": 2, "linear_units": 24, "num_blocks": 2},
    },
    "packed": {
        "encoder": "conformer",
        "encoder_conf": {**CONFORMER["encoder_conf"], "rel_pos_type": "latest", "cnn_module_kernel": 15},
        "decoder": "transformer",
        "decoder_conf": {"attention_heads": 2, "linear_units": 24, "num_blocks": 2},
    },
    "rnn": {**CONFORMER, "decoder": "rnn", "decoder_conf": {"hidden_size": 16, "att_conf": {"adim": 12}}},
    "s4": {
        **CONFORMER,
        "decoder": "s4",
        "decoder_conf": {
            "n_layers": 2,
            "residual": "residual",
            "norm": "layer",
            "layer": [{"_name_": "s4", "d_state": 8, "n_ssm": 1}, {"_name_": "mha", "n_head": 2}, {"_name_": "ff"}],
        },
    },
    "ctc": {**CONFORMER, "decoder": None, "model_conf": {"ctc_weight": 1.0}},
}
LMS: dict[str, dict[str, Any]] = {
    "transformer": {
        "lm": "transformer",
        "lm_conf": {"embed_unit": 8, "att_unit": 16, "head": 2, "unit": 16, "layer": 2},
    },
    "rnn": {"lm": "seq_rnn", "lm_conf": {"unit": 12, "nlayers": 2}},
}
SECONDS = [0.9, 0.31, 1.4, 0.31, 0.6]


def random_model(folder: Path, model: str, lm: str, dtype: torch.dtype) -> LoadedModel:
    torch.manual_seed(0)
    for name, values in {"asr": MODELS[model], "lm": LMS[lm]}.items():
        common = {"token_list": TOKENS, "token_type": "char"}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({**values, **common}))
    config = load_training_config(AsrTrainConfig, folder / "asr.yaml")
    built = build_asr_model(config)
    for parameter in built.parameters():  # random weights make all tokens nearly equal: scale them up
        parameter.data.mul_(1.5)
    return LoadedModel(
        model=built.to(dtype).eval(),
        codec=build_codec(config.text),
        input=speech_input(config, built, folder=folder, device=torch.device("cpu")),
        device=torch.device("cpu"),
        dtype=dtype,
        lm=build_lm(load_training_config(LmTrainConfig, folder / "lm.yaml")).to(dtype).eval(),
    )


@pytest.fixture(scope="module")
def audio() -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [
        (rng.normal(0, 0.2, int(s * 16000)) * np.sin(np.arange(int(s * 16000)) / 300)).astype(np.float32)
        for s in SECONDS
    ]


CASES = [
    ("transformer", "transformer", "joint", 0.0),
    ("transformer", "rnn", "joint", -9.0),
    ("rnn", "rnn", "joint", 0.5),
    ("s4", "rnn", "joint", 0.0),
    ("ctc", "transformer", "joint", 0.0),
    ("transformer", "rnn", "rescore", 0.0),
    ("ctc", "rnn", "ctc_prefix", 0.0),
]


@pytest.mark.parametrize(("model", "lm", "search", "maxlenratio"), CASES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_result_does_not_depend_on_the_batch(
    tmp_path: Path, audio: list[np.ndarray], model: str, lm: str, search: Any, maxlenratio: float, dtype: torch.dtype
) -> None:
    settings = DecodeOptions(
        search=search, beam_size=5, nbest=3, ctc_weight=0.4, lm_weight=0.5, penalty=0.1, maxlenratio=maxlenratio
    )
    if model == "ctc":
        settings = dataclasses.replace(settings, ctc_weight=1.0)
    recognizer = Recognizer(random_model(tmp_path, model, lm, dtype), settings, limits=BatchLimits(batch_size=5))
    tolerance = 1e-9 if dtype == torch.float64 else 1e-4
    alone = [recognizer.decode([samples])[0] for samples in audio]
    for rows in ([0, 1, 2, 3, 4], [4, 2], [1, 3, 0]):
        together = recognizer.decode([audio[row] for row in rows])
        for row, got in zip(rows, together, strict=True):
            want = alone[row]
            assert [h.score for h in got] == pytest.approx([h.score for h in want], abs=tolerance)
            if dtype == torch.float64 or want[0].score - want[1].score > 1e-3:
                assert got[0].token_ids == want[0].token_ids
                assert got[0].times == want[0].times


def test_digital_silence_is_not_decoded(
    tmp_path: Path, audio: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = DecodeOptions(beam_size=3, lm_weight=0.5, maxlenratio=-4)
    loaded = random_model(tmp_path, "transformer", "rnn", torch.float32)
    recognizer = Recognizer(loaded, settings, limits=BatchLimits(max_piece_s=1.0))
    silence = np.zeros(8000, dtype=np.float32)
    alone = recognizer.decode([audio[0]])[0][0]
    decoded: list[int] = []
    encode = recognizer.encode_batch
    monkeypatch.setattr(recognizer, "encode_batch", lambda inputs: decoded.extend(map(len, inputs)) or encode(inputs))
    found = dict(recognizer.recognize([silence, audio[0], np.zeros(64000, dtype=np.float32)]))
    assert decoded == [len(audio[0])]
    assert found[1][0].text == alone.text
    for place in (0, 2):
        assert (found[place][0].text, found[place][0].times, found[place][0].score) == ("", (), 0.0)


def test_nan_weights_are_reported(tmp_path: Path, audio: list[np.ndarray]) -> None:
    loaded = random_model(tmp_path, "transformer", "rnn", torch.float32)
    loaded.model.decoder.output_layer.bias.data.fill_(float("nan"))
    recognizer = Recognizer(loaded, DecodeOptions(beam_size=3, maxlenratio=-3))
    with pytest.raises(UserError, match="scores are nan or inf"):
        recognizer.decode([audio[0]])


def test_without_a_decoder_the_language_model_does_not_choose_the_candidates(tmp_path: Path) -> None:
    settings = DecodeOptions(beam_size=3, ctc_weight=0.4, lm_weight=0.2)
    for model, is_pruned in (("ctc", False), ("transformer", True)):
        loaded = random_model(tmp_path, model, "transformer", torch.float32)
        assert Recognizer(loaded, settings).search.beam.has_pre_beam is is_pruned
