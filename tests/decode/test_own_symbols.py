"""A model whose configuration has symbols and cleaners of its own is decoded, aligned and printed with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
import yaml

from tympan.bin import asr_align, asr_inference, pack
from tympan.config.asr import AsrTrainConfig
from tympan.config.read import load_training_config
from tympan.decode.recognizer import Recognizer
from tympan.decode.words import words_of
from tympan.models.build import build_asr_model

TOKENS = ["<blank>", "<gap>", "a", "b", "c", "<oov>", "<laugh>", "<sos/eos>"]
SYMBOLS = {"unk_symbol": "<oov>", "space_symbol": "<gap>", "nonsplit_symbol": ["<laugh>:0"]}
AUDIO = np.random.default_rng(0).normal(0, 0.1, 32000).astype(np.float32)


def model(folder: Path, tokens: list[str], **config: Any) -> Path:
    """An experiment directory with a tiny CTC model, whose random weights are scaled up."""
    values = {
        "token_list": tokens,
        "token_type": "char",
        "encoder": "conformer",
        "encoder_conf": {"output_size": 16, "attention_heads": 2, "linear_units": 24, "num_blocks": 1},
        "decoder": None,
        "model_conf": {"ctc_weight": 1.0},
        **config,
    }
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump(values))
    torch.manual_seed(1)
    built = build_asr_model(load_training_config(AsrTrainConfig, folder / "config.yaml", allow_import=True))
    weights = {name: value * 8 if "ctc_lo" in name else value for name, value in built.state_dict().items()}
    torch.save(weights, folder / "model.pth")
    return folder


@pytest.fixture
def own_symbols(tmp_path: Path) -> Path:
    return model(tmp_path / "exp", TOKENS, preprocessor_conf=SYMBOLS, cleaner="lowercase")


def test_own_space_and_unknown_symbols_are_decoded(own_symbols: Path) -> None:
    answer = Recognizer.from_pretrained(own_symbols, search="ctc_greedy")(AUDIO, rate=16000)
    assert "<gap>" in answer.tokens
    assert answer.text == "".join(answer.tokens).replace("<gap>", " ").strip()


def test_own_symbols_are_aligned_and_timed(own_symbols: Path) -> None:
    recognizer = Recognizer.from_pretrained(own_symbols)
    aligned = recognizer.align(AUDIO, "AB<laugh> cx")
    assert aligned.tokens == ("a", "b", "<laugh>", "<gap>", "c", "x")
    assert aligned.token_ids == (2, 3, 6, 1, 4, 5)
    assert recognizer.given_text("a x").unknown == ("x",)
    assert [word.text for word in words_of(recognizer.align(AUDIO, "ab c"))] == ["ab", "c"]


def test_pieces_are_joined_with_a_space_where_the_vocabulary_has_one(own_symbols: Path, tmp_path: Path) -> None:
    assert Recognizer.from_pretrained(own_symbols).loaded.codec.separator == " "
    dense = model(tmp_path / "dense", ["<blank>", "<unk>", "你", "好", "<sos/eos>"])
    assert Recognizer.from_pretrained(dense).loaded.codec.separator == ""


def test_the_models_cleaner_cleans_the_text_to_align(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = model(tmp_path / "exp", ["<blank>", "<unk>", *"ABC", "<space>", "<sos/eos>"], cleaner="uppercase")
    soundfile.write(tmp_path / "a.wav", AUDIO, 16000)
    assert asr_align.main([str(folder), "--audio", str(tmp_path / "a.wav"), "--text", "ab c"]) == 0
    assert [line.split()[4] for line in capsys.readouterr().out.splitlines()] == ["AB", "C"]


def test_own_symbols_are_packed_and_written(tmp_path: Path, own_symbols: Path) -> None:
    config = yaml.safe_load((own_symbols / "config.yaml").read_text())
    (own_symbols / "tokens.txt").write_text("\n".join(TOKENS) + "\n")
    (own_symbols / "config.yaml").write_text(yaml.safe_dump(config | {"token_list": "tokens.txt"}))
    packed = tmp_path / "packed"
    assert pack.main([str(packed), "--model", str(own_symbols)]) == 0
    soundfile.write(tmp_path / "a.wav", AUDIO, 16000)
    (tmp_path / "wav.scp").write_text(f"utt {tmp_path / 'a.wav'}\n")
    data = ["--output_dir", str(tmp_path / "out"), "--data_path_and_name_and_type", f"{tmp_path}/wav.scp,speech,sound"]
    assert asr_inference.main([*data, "--model_tag", str(packed), "--search", "ctc_greedy"]) == 0
    said = (tmp_path / "out" / "text").read_text().split(maxsplit=1)[1].split()
    assert len(said) > 1
    assert [line.split()[4] for line in (tmp_path / "out" / "ctm").read_text().splitlines()] == said


def test_words_with_a_delimiter_of_their_own(tmp_path: Path) -> None:
    folder = model(
        tmp_path / "exp",
        ["<blank>", "<unk>", "new york", "is", "big", "<sos/eos>"],
        token_type="word",
        preprocessor_conf={"delimiter": ";"},
    )
    recognizer = Recognizer.from_pretrained(folder, search="ctc_greedy")
    assert recognizer.align(AUDIO, "new york;is;big").token_ids == (2, 3, 4)
    answer = recognizer(AUDIO, rate=16000)
    assert len(answer.tokens) > 1
    assert answer.text == ";".join(answer.tokens)
