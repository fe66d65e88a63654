"""The commands with a pretrained frontend: train with it frozen and cached, resume, pack, transcribe."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import soundfile
import torch
import yaml
from safetensors.torch import load_file

import tympan
from tests.integration.train_corpus import environment, make_corpus, run, same_weights, weights
from tympan.training.checkpoint import read_reporter

transformers = pytest.importorskip("transformers", reason="the extra 'hf' is not installed")


def configure(directory: Path) -> Path:
    """The corpus at 16 kHz, which pretrained encoders need, and its configuration with a frozen WavLM."""
    from tests.models.test_pretrained import tiny_folder

    config = yaml.safe_load(make_corpus(directory).read_text(encoding="utf-8"))
    for path in directory.rglob("*.wav"):
        samples, _ = soundfile.read(path)
        soundfile.write(path, samples.repeat(2), 16000)
    conf = {"upstream": "hf_wavlm_custom", "path_or_url": str(tiny_folder(directory / "wavlm"))}
    config |= {
        "frontend": "s3prl",
        "frontend_conf": {"frontend_conf": conf, "multilayer_feature": True, "cache_dir": str(directory / "cache")},
        "freeze_param": ["frontend.upstream"],
        "preencoder": "linear",
        "preencoder_conf": {"input_size": 16, "output_size": 16},
        "normalize": None,
        "normalize_conf": {},
    }
    config["encoder_conf"] |= {"input_layer": "linear"}
    path = directory / "train.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path


def test_train_pack_and_transcribe(tmp_path: Path) -> None:
    config = configure(tmp_path)
    whole = run(config, tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr[-2000:]
    cached = list((tmp_path / "cache").rglob("*.npy"))
    assert len(cached) == 18, "14 utterances of training and 4 of validation"
    assert run(config, tmp_path / "half", "--max_epoch", "1").returncode == 0
    assert run(config, tmp_path / "half", "--resume", "true").returncode == 0
    assert same_weights(tmp_path / "whole" / "2epoch.pth", tmp_path / "half" / "2epoch.pth")

    command = [sys.executable, "-m", "tympan.bin.pack", str(tmp_path / "packed"), "--model", str(tmp_path / "whole")]
    command += ["--asr_model_file", str(tmp_path / "whole" / "2epoch.pth")]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    shutil.rmtree(tmp_path / "wavlm")
    shutil.rmtree(tmp_path / "cache")
    wav = next((tmp_path / "valid").glob("*.wav"))
    command = [sys.executable, "-m", "tympan.bin.transcribe", str(tmp_path / "packed"), str(wav)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("family", ["wav2vec2", "hubert"])
def test_a_ctc_model_with_a_trained_frontend_knows_its_data_by_heart(tmp_path: Path, family: str) -> None:
    from tests.models.test_pretrained import tiny_folder

    config = yaml.safe_load(configure(tmp_path).read_text(encoding="utf-8"))
    for name in ("wav.scp", "text"):
        lines = (tmp_path / "train" / name).read_text(encoding="utf-8").splitlines()
        (tmp_path / "train" / name).write_text("\n".join(lines[:4]) + "\n", encoding="utf-8")
    folder = tiny_folder(tmp_path / family, family=family)
    architecture = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    rates = {name: 0.0 for name in architecture if "dropout" in name}
    (folder / "config.json").write_text(json.dumps(architecture | rates), encoding="utf-8")
    config |= {
        "frontend": "huggingface",
        "frontend_conf": {"model": str(folder)},
        "freeze_param": [],
        "encoder_conf": {**config["encoder_conf"], "dropout_rate": 0.0, "positional_dropout_rate": 0.0},
        "decoder": None,
        "decoder_conf": {},
        "model_conf": {"ctc_weight": 1.0},
        "scheduler": None,
        "scheduler_conf": {},
        "max_epoch": 60,
        "best_model_criterion": [["valid", "loss", "min"]],
        "keep_nbest_models": [1],
        "valid_data_path_and_name_and_type": config["train_data_path_and_name_and_type"],
    }
    (tmp_path / "ctc.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    tympan.train("asr", tmp_path / "ctc.yaml", output_dir=tmp_path / "exp")
    stats = read_reporter(tmp_path / "exp").stats
    assert stats[60]["train"]["loss"] < stats[1]["train"]["loss"] / 10
    assert tympan.evaluate(tmp_path / "exp", tmp_path / "train", unit="char").total.error_rate == 0


def test_training_needs_the_files_of_the_model(tmp_path: Path) -> None:
    config = configure(tmp_path)
    (tmp_path / "wavlm" / "model.safetensors").unlink()
    done = run(config, tmp_path / "exp")
    assert done.returncode == 2
    assert "there are no weights (model.safetensors or pytorch_model.bin)" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("fsdp", "is_cached"), [("false", True), ("true", True), pytest.param("true", False, marks=pytest.mark.slow)]
)
def test_frozen_encoder_trains_with_two_processes(tmp_path: Path, fsdp: str, is_cached: bool) -> None:
    config = configure(tmp_path)
    if not is_cached:
        values = yaml.safe_load(config.read_text(encoding="utf-8"))
        del values["frontend_conf"]["cache_dir"]
        config.write_text(yaml.safe_dump(values), encoding="utf-8")
    done = run(config, tmp_path / "exp", "--nproc", "2", "--fsdp", fsdp, "--max_epoch", "1")
    assert done.returncode == 0, done.stderr[-2000:]
    trained = weights(tmp_path / "exp" / "1epoch.pth")
    pretrained = load_file(tmp_path / "wavlm" / "model.safetensors")
    for name, tensor in pretrained.items():
        assert torch.equal(trained[f"frontend.upstream.model.{name}"], tensor), name
    assert trained["frontend.featurizer.weights"].any(), "the weights of the layers are trained"
