"""ESPnet2's packed zip files are read as they are, and rejected if they are not models or not safe to unpack."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import torch
import yaml

from tympan.bin.main import cli
from tympan.config.asr import AsrTrainConfig
from tympan.config.read import make_training_config
from tympan.decode.load import load_model
from tympan.decode.model_files import find_model
from tympan.decode.zipped import unpacked
from tympan.errors import UserError
from tympan.models.build import build_asr_model

CONFIG = {
    "token_list": ["<blank>", "<unk>", "a", "b", "<sos/eos>"],
    "token_type": "char",
    "encoder": "conformer",
    "encoder_conf": {"output_size": 16, "attention_heads": 2, "linear_units": 24, "num_blocks": 1},
    "decoder": None,
    "model_conf": {"ctc_weight": 1.0},
}
META: dict[str, object] = {
    "files": {"asr_model_file": "exp/asr/model.pth"},
    "yaml_files": {"asr_train_config": "exp/asr/config.yaml"},
    "torch": "2.1.0",
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tympan" / "models"


def packed(
    path: Path, *, extra: dict[str, bytes] | None = None, has_meta: bool = True, meta: dict[str, object] = META
) -> Path:
    weights = path.with_suffix(".pth")
    torch.save(build_asr_model(make_training_config(AsrTrainConfig, options=CONFIG)).state_dict(), weights)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        if has_meta:
            archive.writestr("meta.yaml", yaml.safe_dump(meta))
        archive.writestr("exp/asr/config.yaml", yaml.safe_dump(CONFIG))
        archive.write(weights, "exp/asr/model.pth")
        for name, content in (extra or {}).items():
            archive.writestr(name, content)
    return path


def test_a_zip_file_is_a_model_and_is_unpacked_once(tmp_path: Path, cache: Path) -> None:
    path = packed(tmp_path / "asr.zip")
    files = find_model(path)
    assert files.asr_model_file.is_relative_to(cache)
    stored = torch.load(path.with_suffix(".pth"), weights_only=True)
    assert torch.equal(
        torch.load(files.asr_model_file, weights_only=True)["ctc.ctc_lo.weight"], stored["ctc.ctc_lo.weight"]
    )
    assert load_model(files).codec.vocabulary.tokens == tuple(CONFIG["token_list"])  # type: ignore[arg-type]
    written = files.asr_model_file.stat().st_mtime_ns
    assert find_model(path) == files
    assert files.asr_model_file.stat().st_mtime_ns == written


@pytest.mark.parametrize("damage", ["shorter", "changed", "missing"])
def test_a_damaged_file_in_the_cache_is_unpacked_again(tmp_path: Path, cache: Path, damage: str) -> None:
    path = packed(tmp_path / "asr.zip")
    model = find_model(path).asr_model_file
    whole = model.read_bytes()
    model.unlink()
    if damage != "missing":
        model.write_bytes(whole[:1000] if damage == "shorter" else bytes([*whole[:-1], whole[-1] ^ 1]))
    assert find_model(path).asr_model_file.read_bytes() == whole


def test_a_folder_that_another_process_unpacked_first_is_kept(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = packed(tmp_path / "asr.zip")
    folder = unpacked(path)
    stored = folder.rename(tmp_path / "stored")

    def unpack_late(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, target: Path) -> None:
        if not folder.exists():
            stored.rename(folder)

    monkeypatch.setattr("tympan.decode.zipped._unpack", unpack_late)
    assert unpacked(path) == folder
    assert sorted(item.name for item in folder.iterdir()) == ["exp", "meta.yaml"]
    assert [item.name for item in cache.iterdir()] == [folder.name]


def test_absolute_paths_name_files_in_the_archive(tmp_path: Path, cache: Path) -> None:
    """ESPnet2 packs an experiment outside of the working directory so: the names in the zip file have no root."""
    weights, config = "/exp/asr/model.pth", "/exp/asr/config.yaml"
    meta: dict[str, object] = {"files": {"asr_model_file": weights}, "yaml_files": {"asr_train_config": config}}
    files = find_model(packed(tmp_path / "asr.zip", meta=meta, extra={"exp/asr/feats_stats.npz": b""}))
    assert files.asr_model_file.is_relative_to(cache)
    assert files.asr_train_config.is_relative_to(cache)
    assert files.find("/exp/asr/feats_stats.npz").is_relative_to(cache)


def test_meta_names_no_file_outside_of_the_archive(tmp_path: Path, cache: Path) -> None:
    meta = {**META, "files": {"asr_model_file": "exp/../../model.pth"}}
    with pytest.raises(UserError, match=r"meta.yaml: asr_model_file: 'exp/../../model.pth' is outside of the model"):
        find_model(packed(tmp_path / "asr.zip", meta=meta))


@pytest.mark.parametrize("name", ["../evil.txt", "/tmp/evil.txt", "exp/../../evil.txt", "..\\evil.txt", "C:/evil.txt"])
def test_files_outside_of_the_folder_are_rejected(tmp_path: Path, cache: Path, name: str) -> None:
    path = packed(tmp_path / "asr.zip", extra={name: b"x"})
    with pytest.raises(UserError, match="would be written outside the model's folder"):
        find_model(path)
    assert not cache.exists()


def test_a_zip_file_that_grows_too_much_is_rejected(tmp_path: Path, cache: Path) -> None:
    path = packed(tmp_path / "asr.zip", extra={"zeros": bytes(80 * 2**20)})
    with pytest.raises(UserError, match="which is too much for a model"):
        find_model(path)
    assert not cache.exists()


def test_another_zip_file_and_a_damaged_one_are_reported(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(UserError, match=r"not a packed model of ESPnet2: it has no meta.yaml"):
        find_model(packed(tmp_path / "other.zip", has_meta=False))
    path = packed(tmp_path / "asr.zip")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"asr.zip: damaged, or not a zip file"):
        find_model(path)
    assert list(cache.glob("[!.]*")) == []


def test_pack_asr_as_asr_sh_calls_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    weights = packed(tmp_path / "asr.zip").with_suffix(".pth")
    exp = tmp_path / "exp" / "asr"
    (exp / "images").mkdir(parents=True)
    (exp / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    (exp / "images" / "loss.png").write_bytes(b"png")
    weights.rename(exp / "model.pth")
    argv = ["pack", "asr", "--asr_train_config", "exp/asr/config.yaml", "--asr_model_file", "exp/asr/model.pth"]
    argv += ["--option", "exp/asr/images", "--option", str(exp / "config.yaml"), "--outpath", "out/packed.zip"]
    assert cli(argv) == 0
    with zipfile.ZipFile("out/packed.zip") as archive:
        assert sorted(archive.namelist()) == [
            "exp/asr/config.yaml",
            "exp/asr/images/loss.png",
            "exp/asr/model.pth",
            "meta.yaml",
        ]
        meta = yaml.safe_load(archive.read("meta.yaml"))
    assert {key: meta[key] for key in ("files", "yaml_files")} == {key: META[key] for key in ("files", "yaml_files")}
    files = find_model(tmp_path / "out" / "packed.zip")
    assert files.asr_model_file.read_bytes() == (exp / "model.pth").read_bytes()
    assert load_model(files).codec.vocabulary.tokens == tuple(CONFIG["token_list"])  # type: ignore[arg-type]
    for changed, message in (
        (["--option", "no_such"], "no_such: no such file or folder"),
        (["--outpath", "out/packed.tgz"], "--outpath: must end with .zip"),
    ):
        assert cli([*argv, *changed]) == 2
        assert message in capsys.readouterr().err
    assert cli(["pack", "folder", "--option", "x"]) == 2
    assert "--option: is for --outpath" in capsys.readouterr().err
