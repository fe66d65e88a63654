"""Whisper with the commands: fine-tune a tiny random model until it knows its data by heart, pack, transcribe."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import soundfile
import torch
import yaml

import tympan
from tests.integration.train_corpus import make_corpus, same_weights
from tests.text.test_whisper_tokens import write_tiktoken
from tympan.bin import pack, transcribe
from tympan.models.pretrained.whisper_decoder import WhisperDecoder
from tympan.models.pretrained.whisper_encoder import WhisperEncoder
from tympan.text.whisper import read_token_strings

pytest.importorskip("tokenizers", reason="the extra 'hf' is not installed")

SIZES = {"n_mels": 80, "n_audio_ctx": 60, "n_audio_state": 32, "n_audio_head": 2, "n_audio_layer": 1}
SIZES |= {"n_text_ctx": 16, "n_text_state": 32, "n_text_head": 2, "n_text_layer": 1}


def make_model(folder: Path) -> Path:
    """A random model of openai's format, with a window of 1.2 seconds, and its vocabulary."""
    folder.mkdir()
    count = len(read_token_strings(write_tiktoken(folder / "multilingual.tiktoken")))
    torch.manual_seed(0)
    dims = {**SIZES, "n_vocab": count}
    encoder = WhisperEncoder(architecture=dims)
    decoder = WhisperDecoder(vocab_size=count, encoder_output_size=32, architecture=dims)
    weights = {f"encoder.{name}": tensor for name, tensor in encoder.encoders.state_dict().items()}
    weights |= {f"decoder.{name}": tensor for name, tensor in decoder.decoders.state_dict().items()}
    weights["decoder.token_embedding.weight"] *= 0.1
    torch.save({"dims": dims, "model_state_dict": weights}, folder / "tiny.pt")
    return folder


def configure(directory: Path, *, utterances: int = 14, **options: Any) -> Path:
    config = yaml.safe_load(make_corpus(directory, utterances=utterances).read_text(encoding="utf-8"))
    for path in directory.rglob("*.wav"):
        samples, _ = soundfile.read(path)
        soundfile.write(path, samples.repeat(2), 16000)
    folder = make_model(directory / "whisper")
    conf = {"whisper_model": str(folder / "tiny.pt")}
    for name in ("frontend_conf", "token_list"):
        del config[name]
    config |= {
        "input_size": 1,
        "frontend": None,
        "normalize": None,
        "encoder": "whisper",
        "encoder_conf": conf,
        "decoder": "whisper",
        "decoder_conf": conf,
        "token_type": "whisper_multilingual",
        "bpemodel": str(folder / "multilingual.tiktoken"),
        "preprocessor_conf": {"whisper_language": "en", "whisper_task": "transcribe"},
        "model_conf": {
            "ctc_weight": 0.0,
            "extract_feats_in_collect_stats": False,
            "sym_sos": "<|startoftranscript|>",
            "sym_eos": "<|endoftext|>",
        },
        **options,
    }
    path = directory / "train.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path


def test_fine_tuned_model_knows_its_data_by_heart(tmp_path: Path) -> None:
    length = {"max_epoch": 2, "num_iters_per_epoch": 50, "batch_size": 4, "keep_nbest_models": 1}
    config = configure(tmp_path, utterances=4, scheduler=None, scheduler_conf={}, **length)
    values = yaml.safe_load(config.read_text(encoding="utf-8"))
    values["valid_data_path_and_name_and_type"] = values["train_data_path_and_name_and_type"]
    config.write_text(yaml.safe_dump(values), encoding="utf-8")
    epochs = tympan.train("asr", config, output_dir=tmp_path / "exp").epochs
    assert epochs[2]["train"]["loss"] < 0.1 * epochs[1]["train"]["loss"]
    texts = dict(line.split() for line in (tmp_path / "train" / "text").read_text().splitlines())
    wavs = {name: tmp_path / "train" / f"{name}.wav" for name in texts}
    recognizer = tympan.load(tmp_path / "exp", beam_size=3)
    found = dict(zip(texts, recognizer(list(wavs.values())), strict=True))
    assert {name: hypothesis.text for name, hypothesis in found.items()} == texts
    for name, path in list(wavs.items())[:3]:
        alone = recognizer(path)
        assert alone.text == texts[name]
        assert alone.score == pytest.approx(found[name].score, abs=1e-4)


def test_resume_pack_and_transcribe(tmp_path: Path) -> None:
    specaug = {"apply_time_warp": True, "time_mask_width_ratio_range": [0.0, 0.1]}
    config = configure(tmp_path)
    conf = {"encoder_conf": {"whisper_model": str(tmp_path / "whisper" / "tiny.pt"), "use_specaug": True}}
    conf["encoder_conf"] |= {"specaug_conf": specaug, "dropout_rate": 0.1}
    config.write_text(yaml.safe_dump(yaml.safe_load(config.read_text()) | conf), encoding="utf-8")
    tympan.train("asr", config, output_dir=tmp_path / "whole")
    tympan.train("asr", config, output_dir=tmp_path / "half", max_epoch=1)
    tympan.train("asr", config, output_dir=tmp_path / "half", resume=True)
    assert same_weights(tmp_path / "whole" / "2epoch.pth", tmp_path / "half" / "2epoch.pth")
    weights = torch.load(tmp_path / "whole" / "2epoch.pth", weights_only=True)
    assert "encoder.encoders.blocks.0.attn.query.weight" in weights
    assert "decoder.decoders.token_embedding.weight" in weights

    assert pack.main([str(tmp_path / "packed"), "--model", str(tmp_path / "whole")]) == 0
    wav = next((tmp_path / "valid").glob("*.wav"))
    before = tympan.load(tmp_path / "whole")(wav)
    shutil.rmtree(tmp_path / "whisper")
    assert tympan.load(tmp_path / "packed")(wav) == before


@pytest.mark.parametrize("form", ["folder", "file", "hub"])
def test_published_model_transcribes_by_itself(tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_model(tmp_path / "whisper")
    make_corpus(tmp_path)
    if form == "hub":
        folder = as_hub_folder(folder, tmp_path / "hub")
    wavs = sorted((tmp_path / "valid").glob("*.wav"))
    model = folder / "tiny.pt" if form == "file" else folder
    assert transcribe.main([str(model), "--json", *map(str, wavs)]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == 4
    recognizer = tympan.load(model, lang_prompt_token="<|en|>")
    hypothesis = recognizer(wavs[0])
    assert hypothesis.times is not None
    assert all(0 <= start <= end <= 30 for start, end in hypothesis.times)
    assert recognizer(wavs)[0].score == pytest.approx(hypothesis.score, abs=1e-4)


def as_hub_folder(folder: Path, target: Path) -> Path:
    """The same model as `transformers` saves it."""
    transformers = pytest.importorskip("transformers", reason="the extra 'hf' is not installed")
    from tympan.models.pretrained.whisper_files import openai_names
    from tympan.text.whisper import read_tokenizer

    content = torch.load(folder / "tiny.pt", weights_only=True)
    count = content["dims"]["n_vocab"]
    config = transformers.WhisperConfig(
        vocab_size=count, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=128, decoder_ffn_dim=128, max_source_positions=60,
        max_target_positions=16, pad_token_id=0, bos_token_id=0, eos_token_id=0, decoder_start_token_id=0,
    )  # fmt: skip
    model = transformers.WhisperForConditionalGeneration(config)
    own = model.state_dict()
    names = {ours: theirs for theirs in own for ours in openai_names({theirs: own[theirs]})}
    model.load_state_dict({names[name]: tensor for name, tensor in content["model_state_dict"].items()}, strict=False)
    model.save_pretrained(target)
    tokens = read_token_strings(folder / "multilingual.tiktoken")
    tokenizer = read_tokenizer(folder / "multilingual.tiktoken")
    tokenizer.add_special_tokens([token for token in tokens if token.startswith("<|")])
    tokenizer.save(str(target / "tokenizer.json"))
    return target


def test_vocabulary_of_another_size_is_rejected(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "whisper")
    content = torch.load(folder / "tiny.pt", weights_only=True)
    content["dims"]["n_vocab"] -= 5
    torch.save(content, folder / "tiny.pt")
    with pytest.raises(tympan.errors.UserError, match="use the vocabulary of this model"):
        tympan.load(folder)
