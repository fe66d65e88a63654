"""A CTC model as `transformers` saves it (Wav2Vec2ForCTC, HubertForCTC, WavLMForCTC) is a model of every command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
import yaml
from torch import Tensor

import tympan
from tympan.bin.main import cli
from tympan.errors import UserError

transformers = pytest.importorskip("transformers", reason="the extra 'hf' is not installed")

SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "conv_dim": [8] * 7,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}
FIRST = ["<pad>", "<s>", "</s>", "<unk>", "|", *"ABCDE'"]
"""The order of the first published models."""
LAST = [*"abcde'|", "[UNK]", "[PAD]"]
"""The order of models that were fine-tuned later. The tokenizer adds <s> and </s>, which the model does not have."""


def make_folder(
    folder: Path, *, family: str = "Wav2Vec2", tokens: list[str] = FIRST, do_normalize: bool = True, **config: Any
) -> Path:
    """A model with random weights, large enough to predict all tokens, and its processor."""
    torch.manual_seed(1)
    folder.mkdir(parents=True)
    pad, unk = (token for name in ("pad", "unk") for token in tokens if token.strip("<>[]").lower() == name)
    values = {**SIZES, "vocab_size": len(tokens), "pad_token_id": tokens.index(pad), **config}
    model = getattr(transformers, f"{family}ForCTC")(getattr(transformers, f"{family}Config")(**values))
    torch.nn.init.normal_(model.lm_head.weight, std=1.0)
    torch.nn.init.normal_(model.lm_head.bias)
    model.save_pretrained(folder)
    (folder / "vocab.json").write_text(json.dumps({token: index for index, token in enumerate(tokens)}))
    tokenizer = transformers.Wav2Vec2CTCTokenizer(str(folder / "vocab.json"), unk_token=unk, pad_token=pad)
    extractor = transformers.Wav2Vec2FeatureExtractor(do_normalize=do_normalize)
    transformers.Wav2Vec2Processor(feature_extractor=extractor, tokenizer=tokenizer).save_pretrained(folder)
    return folder


def speech(seconds: float = 1.5) -> np.ndarray:
    return np.random.default_rng(0).normal(0.05, 0.1, int(16000 * seconds)).clip(-1, 1).astype(np.float32)


def expected(folder: Path, family: str) -> tuple[Tensor, str]:
    """Logits (frames, tokens) and greedy text of transformers itself."""
    model = getattr(transformers, f"{family}ForCTC").from_pretrained(folder).eval()
    processor = transformers.Wav2Vec2Processor.from_pretrained(folder)
    inputs = processor(speech(), sampling_rate=16000, return_tensors="pt")
    with torch.no_grad():
        logits = model(inputs.input_values).logits[0]
    return logits, processor.decode(logits.argmax(-1))


@pytest.mark.parametrize(
    ("family", "tokens", "do_normalize", "config"),
    [
        ("Wav2Vec2", FIRST, True, {}),
        ("Wav2Vec2", LAST, False, {"feat_extract_norm": "layer", "do_stable_layer_norm": True, "conv_bias": True}),
        ("Hubert", FIRST, True, {}),
        ("WavLM", LAST, True, {}),
    ],
)
def test_logits_and_greedy_text_equal_those_of_transformers(
    tmp_path: Path, family: str, tokens: list[str], do_normalize: bool, config: dict[str, Any]
) -> None:
    folder = make_folder(tmp_path / "m", family=family, tokens=tokens, do_normalize=do_normalize, **config)
    logits, text = expected(folder, family)
    assert len(text) > 5
    recognizer = tympan.load(folder)
    log_probs = recognizer.encode(speech(), rate=16000).ctc_log_probs
    assert log_probs is not None
    torch.testing.assert_close(log_probs[:, : len(tokens)], logits.log_softmax(-1), atol=1e-5, rtol=1e-5)
    assert tympan.load(folder, search="ctc_greedy")(speech(), rate=16000).text == text
    assert recognizer(speech(), rate=16000).text == text, "greedy search is the default, as in transformers"
    assert isinstance(tympan.load(folder, search="ctc_prefix", beam_size=4)(speech(), rate=16000).text, str)


def test_a_folder_is_transcribed_and_packed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_folder(tmp_path / "m", tokens=LAST)
    text = expected(folder, "Wav2Vec2")[1]
    soundfile.write(tmp_path / "a.wav", speech(), 16000, subtype="FLOAT")
    assert cli(["transcribe", str(folder), str(tmp_path / "a.wav")]) == 0
    assert text in capsys.readouterr().out
    assert cli(["pack", str(tmp_path / "packed"), "--model", str(folder)]) == 0
    for file in folder.iterdir():
        file.unlink()
    assert tympan.load(tmp_path / "packed")(speech(), rate=16000).text == text
    values = yaml.safe_load((tmp_path / "packed" / "config.yaml").read_text(encoding="utf-8"))
    assert values["token_list"] == [*"abcde'|", "[UNK]", "<blank>", "<sos/eos>"]


def test_weights_of_bin_files_and_lower_case(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "m")
    text = expected(folder, "Wav2Vec2")[1]
    model = transformers.Wav2Vec2ForCTC.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    assert tympan.load(folder)(speech(), rate=16000).text == text
    change(folder / "tokenizer_config.json", do_lower_case=True)
    assert transformers.Wav2Vec2Processor.from_pretrained(folder).tokenizer.do_lower_case
    assert tympan.load(folder)(speech(), rate=16000).text == text.lower()


def test_what_is_not_supported_is_reported(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "m")
    (folder / "vocab.json").rename(tmp_path / "vocab.json")
    with pytest.raises(UserError, match=r"m: there is no vocab\.json, the tokens of this model"):
        tympan.load(folder)
    tokens = json.loads((tmp_path / "vocab.json").read_text())
    (folder / "vocab.json").write_text(json.dumps({token: n for token, n in tokens.items() if n != 4}))
    with pytest.raises(UserError, match=r"vocab\.json: no token has the number 4, but the model predicts 11 tokens"):
        tympan.load(folder)
    (tmp_path / "vocab.json").rename(folder / "vocab.json")
    change(folder / "tokenizer_config.json", tokenizer_class="Wav2Vec2PhonemeCTCTokenizer")
    with pytest.raises(UserError, match="Wav2Vec2PhonemeCTCTokenizer is not supported"):
        tympan.load(folder)
    change(folder / "tokenizer_config.json", tokenizer_class="Wav2Vec2CTCTokenizer")
    change(folder / "config.json", add_adapter=True)
    with pytest.raises(UserError, match="add_adapter"):
        tympan.load(folder)
    change(folder / "config.json", add_adapter=False, architectures=["Wav2Vec2Model"])
    with pytest.raises(UserError, match=r"m: a Wav2Vec2Model has no output layer for tokens"):
        tympan.load(folder)
    change(folder / "config.json", model_type="bert", architectures=["BertModel"])
    with pytest.raises(UserError, match=r"m: not a speech recognizer that Tympan supports: model_type is 'bert'"):
        tympan.load(folder)


def test_tokens_by_language(tmp_path: Path) -> None:
    """Models for many languages have one list per language."""
    folder = make_folder(tmp_path / "m")
    text = expected(folder, "Wav2Vec2")[1]
    tokens = json.loads((folder / "vocab.json").read_text())
    (folder / "vocab.json").write_text(json.dumps({"deu": {"<pad>": 0}, "eng": tokens}))
    with pytest.raises(UserError, match=r"vocab\.json: has one list of tokens per language \(deu, eng\)"):
        tympan.load(folder)
    change(folder / "tokenizer_config.json", target_lang="eng")
    assert tympan.load(folder)(speech(), rate=16000).text == text


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **values}), encoding="utf-8")
