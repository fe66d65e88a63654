"""Fine-tune a model whose frontend is a pretrained encoder, from its packed folder alone."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import soundfile
import torch
import yaml

import tympan
from tympan.config.choices import ADAPTERS
from tympan.models.build import build_asr_model
from tympan.models.weights import load_weights
from tympan.training.checkpoint import read_reporter
from tympan.training.optimizers import freeze
from tympan.tuning.options import Method, make_options
from tympan.tuning.plan import what_is_trained
from tympan.tuning.run import Finetuned
from tympan.tuning.start import pack_base, read_start

pytest.importorskip("transformers", reason="the extra 'hf' is not installed")

from tests.integration.test_pretrained_frontend import configure
from tests.integration.train_corpus import make_corpus


@pytest.mark.parametrize("method", ["lora", "houlsby", "full"])
def test_a_packed_model_needs_no_other_files(tmp_path: Path, method: str) -> None:
    tympan.train("asr", configure(tmp_path), output_dir=tmp_path / "exp", max_epoch=1)
    from tympan.bin.main import cli

    assert cli(["pack", str(tmp_path / "packed"), "--model", str(tmp_path / "exp")]) == 0
    shutil.rmtree(tmp_path / "wavlm")
    out = tmp_path / "out"
    done = tympan.finetune(
        tmp_path / "packed", output_dir=out, train_dir=tmp_path / "train", dev_dir=tmp_path / "valid", method=method,
        max_epoch=2, num_workers=0, lr=0.01, asr_args="--use_tensorboard false --use_matplotlib false",
    )  # fmt: skip
    saved = torch.load(out / "train" / "valid.acc.best.pth", weights_only=True)
    inside = [name for name in saved if name.startswith("frontend.upstream.")]
    assert inside
    if method == "houlsby":
        as_espnet2 = {
            name.replace("feed_forward.output_dense.houlsby", "adapter.houlsby"): saved[name] for name in saved
        }
        torch.save(as_espnet2, tmp_path / "espnet2.pth")
        assert load_weights(tmp_path / "espnet2.pth").keys() == saved.keys() != as_espnet2.keys()
        assert set(saved) == set(inside), "as in ESPnet2, only the layers of the frontend have adapters"
    audio = str(next((tmp_path / "valid").glob("*.wav")))
    before, after = (tympan.load(folder).encode(audio).out for folder in (tmp_path / "packed", done.model))
    assert not torch.allclose(before, after, atol=1e-3)


@pytest.mark.parametrize("method", ["lora", "houlsby"])
def test_a_published_whisper_model(tmp_path: Path, method: str) -> None:
    pytest.importorskip("tokenizers", reason="the extra 'hf' is not installed")
    from tests.integration.test_whisper import configure as configure_whisper

    configure_whisper(tmp_path, utterances=6)
    arguments = "--use_tensorboard false --use_matplotlib false --preprocessor_conf whisper_language=en"
    done = finetune_whisper(tmp_path, method=method, asr_args=arguments)
    stats = read_reporter(tmp_path / "out" / "train").stats
    assert stats[2]["train"]["loss"] < stats[1]["train"]["loss"]
    audio = str(next((tmp_path / "valid").glob("*.wav")))
    before, after = (tympan.load(folder).encode(audio).out for folder in (tmp_path / "whisper", done.model))
    assert not torch.allclose(before, after, atol=1e-4)


def finetune_whisper(directory: Path, **options: Any) -> Finetuned:
    data = {"train_dir": directory / "train", "dev_dir": directory / "valid"}
    rest: dict[str, Any] = {"max_epoch": 2, "num_workers": 0, "lr": 0.01}
    return tympan.finetune(directory / "whisper", output_dir=directory / "out", **data, **rest, **options)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("top_n", ("encoder.encoders.model.encoder.layers.1.", "ctc.")),
        ("houlsby", tuple(f"encoder.encoders.model.encoder.layers.{n}." for n in (0, 1))),
    ],
)
def test_only_the_layers_of_the_method_are_trained_in_a_pretrained_encoder(
    tmp_path: Path, method: Method, expected: tuple[str, ...]
) -> None:
    from tests.decode.test_ctc_folder import make_folder

    pack_base(str(make_folder(tmp_path / "hub")), tmp_path / "base", options=None, allow_import=False)
    start = read_start(tmp_path / "base", changed=[], allow_import=False)
    options = make_options(model="hub", output_dir="out", train_dir="a", dev_dir="b", method=method, top_n=1)
    chosen = what_is_trained(options, start)
    model = build_asr_model(start.config, reads_statistics=False)
    freeze(model, chosen.get("freeze_param", []))
    if chosen.get("use_adapter"):
        ADAPTERS.build(chosen["adapter"], chosen["adapter_conf"]).add_to(model, freezes=True)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert all(name.startswith(expected) for name in trained)
    assert all(any(name.startswith(prefix) for name in trained) for prefix in expected)
    assert len(trained) == {"top_n": 18, "houlsby": 8}[method]


@pytest.mark.parametrize("family", ["Wav2Vec2", "Hubert"])
def test_a_published_ctc_model_learns_sentences_and_a_new_character_by_heart(tmp_path: Path, family: str) -> None:
    from tests.decode.test_ctc_folder import make_folder

    make_corpus(tmp_path, utterances=6)
    for path in tmp_path.rglob("*.wav"):
        samples, _ = soundfile.read(path)
        soundfile.write(path, samples.repeat(2), 16000)
    tokens = [*"ab|'", "[UNK]", "[PAD]"]
    rates = dict.fromkeys(("hidden_dropout", "attention_dropout", "activation_dropout", "feat_proj_dropout"), 0.0)
    folder = make_folder(tmp_path / "hub", family=family, tokens=tokens, final_dropout=0.0, **rates)
    data = {"train_dir": tmp_path / "train", "dev_dir": tmp_path / "train"}
    done = tympan.finetune(
        folder, output_dir=tmp_path / "out", **data, extend_vocab=True, lr=0.003, max_epoch=50, batch_s=0.6,
        num_workers=0, asr_args="--use_tensorboard false --use_matplotlib false",
    )  # fmt: skip
    stats = read_reporter(tmp_path / "out" / "train").stats
    assert stats[50]["train"]["loss"] < stats[1]["train"]["loss"] / 10
    assert done.results["dev"].before.total.error_rate > 90
    assert done.results["dev"].after.total.error_rate == 0
    config = yaml.safe_load((done.model / "config.yaml").read_text(encoding="utf-8"))
    assert config["token_list"] == [*"ab|'", "[UNK]", "<blank>", "c", "<sos/eos>"]
    assert done.unit == "word"
