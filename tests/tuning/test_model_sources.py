"""`tympan finetune MODEL` with every kind of MODEL; tests/tuning/test_finetune_pretrained.py has published models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

import tympan
from tympan.bin.main import cli
from tympan.errors import UserError

COMMON: dict[str, Any] = {
    "num_workers": 0,
    "max_epoch": 1,
    "asr_args": "--use_tensorboard false --use_matplotlib false",
}

# The package reads its settings when it is imported, so it runs with the hub in a separate process.
SESSION = """
import json, os, sys
from pathlib import Path
from hub_server import serving

folder, train, dev, output = sys.argv[1:]
with serving() as hub:
    os.environ["HF_ENDPOINT"] = hub.address
    hub.repositories["me/tiny"] = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    import tympan
    done = tympan.finetune(
        "me/tiny", train_dir=train, dev_dir=dev, output_dir=output, max_epoch=1, num_workers=0,
        asr_args="--use_tensorboard false --use_matplotlib false",
    )
    print(json.dumps(done.results["dev"].before.total.error_rate))
"""


@pytest.fixture(scope="module")
def packed(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packed") / "model"
    assert cli(["pack", str(folder), "--model", str(corpus / "exp")]) == 0
    return folder


def zipped(corpus: Path, path: Path) -> Path:
    """The experiment as ESPnet2 packs it."""
    files = {"asr_model_file": "exp/asr/valid.acc.ave.pth"}
    with zipfile.ZipFile(path, "w") as archive:
        meta = {"files": files, "yaml_files": {"asr_train_config": "exp/asr/config.yaml"}}
        archive.writestr("meta.yaml", yaml.safe_dump(meta))
        archive.write(corpus / "exp" / "config.yaml", "exp/asr/config.yaml")
        archive.write(corpus / "exp" / "valid.acc.ave.pth", files["asr_model_file"])
    return path


@pytest.mark.parametrize("kind", ["packed", "zip"])
def test_a_packed_folder_and_a_zip_file(
    corpus: Path, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = packed if kind == "packed" else zipped(corpus, tmp_path / "asr.zip")
    done = tympan.finetune(
        model, train_dir=corpus / "train", dev_dir=corpus / "valid", output_dir=tmp_path / "out", **COMMON
    )
    wanted = tympan.evaluate(corpus / "exp", corpus / "valid").total.error_rate
    assert done.results["dev"].before.total.error_rate == wanted
    assert (done.model / "model.safetensors").is_file()


def test_a_name_on_the_hub(corpus: Path, packed: Path, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    settings = {"HF_HOME": str(tmp_path), "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1"}
    beside = Path(__file__).parents[1] / "decode"
    arguments = [packed, corpus / "train", corpus / "valid", tmp_path / "out"]
    done = subprocess.run(
        [sys.executable, "-c", SESSION, *map(str, arguments)],
        env={**os.environ, **settings, "PYTHONPATH": str(beside)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    wanted = tympan.evaluate(corpus / "exp", corpus / "valid").total.error_rate
    assert json.loads(done.stdout.splitlines()[-1]) == wanted


def test_a_model_that_does_not_exist(corpus: Path, tmp_path: Path) -> None:
    data = {"train_dir": corpus / "train", "dev_dir": corpus / "valid"}
    with pytest.raises(UserError, match=r"no such folder\. A model on the hub is named OWNER/NAME"):
        tympan.finetune(tmp_path / "nothing" / "here", output_dir=tmp_path / "out", **data, **COMMON)
    (tmp_path / "model.wav").write_bytes(b"RIFF")
    with pytest.raises(UserError, match="this file is neither"):
        tympan.finetune(tmp_path / "model.wav", output_dir=tmp_path / "out", **data, **COMMON)
