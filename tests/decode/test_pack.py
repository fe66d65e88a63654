"""`tympan pack`: the packed folder by itself gives the same results."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
import torch
import yaml

from tympan.bin.main import cli
from tympan.config.asr import AsrTrainConfig
from tympan.config.read import load_training_config
from tympan.decode.model_files import find_model
from tympan.models.build import build_asr_model

CONFIG = {
    "token_list": ["<blank>", "<unk>", "a", "b", "<sos/eos>"],
    "token_type": "char",
    "encoder": "conformer",
    "encoder_conf": {"output_size": 16, "attention_heads": 2, "linear_units": 24, "num_blocks": 1},
    "decoder": None,
    "model_conf": {"ctc_weight": 1.0},
}
ARPA = "\\data\\\nngram 1=4\n\n\\1-grams:\n-1\t<unk>\n-1\t</s>\n-1\t<s>\n-1\ta\n\n\\end\\\n"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """An experiment directory with a tiny model."""
    folder = tmp_path / "exp"
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    built = build_asr_model(load_training_config(AsrTrainConfig, folder / "config.yaml"))
    torch.save(built.state_dict(), folder / "model.pth")
    return folder


@pytest.mark.parametrize(
    ("name", "stored"), [("my3gram", "ngram.arpa"), ("a.3gram", "ngram.3gram"), ("x.arpa.v2", "ngram.v2")]
)
def test_an_ngram_of_any_name_is_packed_and_found(model: Path, tmp_path: Path, name: str, stored: str) -> None:
    (tmp_path / name).write_text(ARPA)
    packed = tmp_path / "packed"
    assert cli(["pack", str(packed), "--model", str(model), "--ngram_file", str(tmp_path / name)]) == 0
    assert find_model(packed).ngram_file == packed / stored


def test_an_ngram_without_suffix_is_found(model: Path) -> None:
    (model / "ngram").mkdir()
    assert find_model(model).ngram_file is None
    (model / "ngram").rmdir()
    (model / "ngram").write_text(ARPA)
    assert find_model(model).ngram_file == model / "ngram"


def test_a_packed_model_keeps_its_settings_when_it_is_packed_again(model: Path, tmp_path: Path) -> None:
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    (tmp_path / "a.yaml").write_text("beam_size: 3\n")
    (tmp_path / "b.yaml").write_text("nbest: 2\n")
    assert cli(["pack", str(first), "--model", str(model), "--decode_config", str(tmp_path / "a.yaml")]) == 0
    assert cli(["pack", str(second), "--model", str(first)]) == 0
    assert find_model(second).settings == find_model(first).settings
    assert find_model(second).settings["beam_size"] == 3
    assert cli(["pack", str(third), "--model", str(first), "--decode_config", str(tmp_path / "b.yaml")]) == 0
    assert (find_model(third).settings["beam_size"], find_model(third).settings["nbest"]) == (20, 2)


def test_a_pack_that_fails_leaves_nothing_and_can_be_corrected(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.arpa").write_text(ARPA.replace("\\end\\", ""))
    (tmp_path / "good.arpa").write_text(ARPA)
    before = sorted(tmp_path.iterdir())
    packed = tmp_path / "my model"
    command = ["pack", str(packed), "--model", str(model), "--ngram_file"]
    assert cli([*command, str(tmp_path / "bad.arpa")]) == 2
    message = capsys.readouterr().err
    assert "nothing was packed because the model can't be loaded" in message
    assert f"{packed}/ngram.arpa" in message
    assert sorted(tmp_path.iterdir()) == before
    assert cli([*command, str(tmp_path / "good.arpa")]) == 0
    assert f"Try: tympan transcribe '{packed}' AUDIO" in capsys.readouterr().out
    assert sorted(tmp_path.iterdir()) == sorted([*before, packed])
    assert cli([*command, str(tmp_path / "good.arpa")]) == 2
    assert "not empty; choose another folder" in capsys.readouterr().err


def test_the_folder_that_one_stands_in_is_filled(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert cli(["pack", ".", "--model", str(model)]) == 0
    assert sorted(path.name for path in Path().iterdir()) == ["config.yaml", "model.safetensors"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["exp", "here"]


@pytest.mark.parametrize(
    "change",
    [
        {"token_type": "bpe", "bpemodel": "/dev/zero"},
        {"normalize": "global_mvn", "normalize_conf": {"stats_file": "/dev/zero"}},
        {"non_linguistic_symbols": "/dev/zero"},
        {"token_list": "/dev/zero"},
    ],
)
def test_a_device_that_a_configuration_names_is_not_copied(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, object]
) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 24, before[1]))  # a copy would fill the disk
    try:
        (model / "config.yaml").write_text(yaml.safe_dump({**CONFIG, **change}))
        assert cli(["pack", str(tmp_path / "packed"), "--model", str(model)]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "/dev/zero: is a device, but a file is expected" in capsys.readouterr().err
    assert not (tmp_path / "packed").exists()


def test_stored_features_with_a_device_are_not_copied(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (model / "features.yaml").write_text("cmvn: /dev/null\n")
    assert cli(["pack", str(tmp_path / "packed"), "--model", str(model)]) == 2
    assert "/dev/null: is a device, but a file is expected" in capsys.readouterr().err


def test_packing_runs_no_code_that_a_configuration_names(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (model / "config.yaml").write_text(yaml.safe_dump({**CONFIG, "encoder": "trap:Encoder", "encoder_conf": {}}))
    assert cli(["pack", str(tmp_path / "packed"), "--model", str(model)]) == 2
    assert "loading the model would run its code" in capsys.readouterr().err
    assert not (tmp_path / "packed").exists()
