"""ESPnet2's options for dynamic quantization."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tympan.bin import asr_inference
from tympan.decode.espnet2_options import QuantizationOptions
from tympan.decode.load import load_model
from tympan.decode.model_files import ModelFiles
from tympan.decode.options import InferenceOptions
from tympan.errors import UserError
from tympan.nn.quantized import quantize

REQUIRED: dict[str, Any] = {"output_dir": Path("x"), "data_path_and_name_and_type": [("a", "speech", "sound")]}


def test_weights_are_8_bit_integers_and_the_output_is_close() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.LSTM(8, 4, batch_first=True)).eval()
    x = torch.randn(2, 5, 16)
    expected = model(x)[0]
    assert quantize(model, ("Linear",), "qint8") == 1
    assert model[0].weight().dtype == torch.qint8
    assert type(model[2]) is nn.LSTM
    assert quantize(model, ("LSTM",), "qint8") == 1
    found = model(x)[0]
    assert not torch.equal(found, expected)
    torch.testing.assert_close(found, expected, atol=0.02, rtol=0)


def test_weights_of_16_bits() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 8))
    x = torch.randn(2, 16)
    expected = model(x)
    quantize(model, ("Linear",), "float16")
    torch.testing.assert_close(model(x), expected, atol=2e-3, rtol=0)


@pytest.mark.parametrize("name", ["conformer", "e_branchformer", "vgg_rnn"])
def test_every_linear_layer_of_a_recognizer_is_quantized(golden: Path, name: str) -> None:
    folder = golden / "espnet2" / name
    files = ModelFiles(asr_train_config=folder / "config.yaml", asr_model_file=folder / "model.pth")
    loaded = load_model(files, quantization=QuantizationOptions(quantize_asr_model=True))
    assert isinstance(loaded.model, nn.Module)
    assert not any(type(module) is nn.Linear for module in loaded.model.modules())
    linears = [module for module in loaded.model.modules() if type(module).__name__ == "Linear"]
    assert len(linears) > 5
    assert {module.weight().dtype for module in linears} == {torch.qint8}


def test_texts_of_a_trained_model_stay_the_same(golden: Path, tmp_path: Path) -> None:
    folder = golden / "espnet2" / "an4_trained"
    if not folder.is_dir():
        pytest.skip("../shared/golden/espnet2/an4_trained is missing")
    wavs = sorted((folder / "wav").glob("*.wav"))[:2]
    (tmp_path / "wav.scp").write_text("".join(f"{path.stem} {path}\n" for path in wavs))
    arguments = [
        *("--asr_train_config", str(folder / "asr_config.yaml"), "--asr_model_file", str(folder / "asr_model.pth")),
        *("--lm_train_config", str(folder / "lm_config.yaml"), "--lm_file", str(folder / "lm_model.pth")),
        *("--data_path_and_name_and_type", f"{tmp_path / 'wav.scp'},speech,sound", "--beam_size", "3"),
        *("--ctc_weight", "0.4", "--lm_weight", "0.3", "--output_dir"),
    ]
    assert asr_inference.main([*arguments, str(tmp_path / "plain")]) == 0
    quantized = ["--quantize_asr_model", "true", "--quantize_lm", "true", "--batch_size", "4"]
    assert asr_inference.main([*arguments, str(tmp_path / "quantized"), *quantized]) == 0
    assert (tmp_path / "quantized" / "text").read_text() == (tmp_path / "plain" / "text").read_text()
    scores = [(tmp_path / name / "1best_recog" / "score").read_text() for name in ("quantized", "plain")]
    assert scores[0] != scores[1]
    alone = [*quantized[:-1], "1"]
    assert asr_inference.main([*arguments, str(tmp_path / "alone"), *alone]) == 0
    assert (tmp_path / "alone" / "1best_recog" / "score").read_text() == scores[0]
    with pytest.raises(UserError, match="quantize_lm was None, now True"):
        asr_inference.main([*arguments, str(tmp_path / "plain"), *quantized])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"quantize_asr_model": True, "ngpu": 1}, "quantize_asr_model is only possible on a CPU: give --ngpu 0"),
        ({"quantize_lm": True, "device": "npu"}, "quantize_lm is only possible on a CPU"),
        ({"quantize_lm": True, "dtype": "bfloat16"}, "quantize_lm needs --dtype float32, found bfloat16"),
        ({"quantize_modules": ["Conv2d"]}, "quantize_modules"),
        ({"quantize_dtype": "int4"}, "quantize_dtype expects qint8 | float16, found 'int4'"),
    ],
)
def test_what_is_not_possible_is_an_error(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        InferenceOptions(**REQUIRED, **given)
    assert message in str(caught.value)


def test_a_model_without_such_layers(golden: Path) -> None:
    folder = golden / "espnet2" / "transformer"
    files = ModelFiles(asr_train_config=folder / "config.yaml", asr_model_file=folder / "model.pth")
    options = QuantizationOptions(quantize_asr_model=True, quantize_modules=["LSTM"])
    with pytest.raises(UserError, match=r"the recognizer has no layers of torch\.nn's LSTM to quantize"):
        load_model(files, quantization=options)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"streaming": True}, "streaming"),
        ({"sim_chunk_length": 512, "disable_repetition_detection": True},
         "sim_chunk_length, disable_repetition_detection"),
    ],
)  # fmt: skip
def test_options_of_the_streaming_decoder_give_one_message(given: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError) as caught:
        InferenceOptions(**REQUIRED, **given)
    assert str(caught.value) == (
        f"{next(iter(given))} belongs to ESPnet2's streaming decoder, which is not supported: to decode whole "
        f"recordings, remove {named}; `tympan stream` takes the file and recognizes audio in pieces with other searches"
    )
    InferenceOptions(**REQUIRED, sim_chunk_length=0, encoded_feat_length_limit=0, decoder_text_length_limit=0)
