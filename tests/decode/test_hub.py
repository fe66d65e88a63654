"""Packed models on a hub: the real package against a hub on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tympan.decode.hub import check_can_publish, download, needed_files
from tympan.decode.model_files import WEIGHTS
from tympan.errors import UserError

# The package reads its settings when it is imported, so it runs with the hub in a separate process.
SESSION = """
import contextlib, io, json, os, sys
from hub_server import serving

def run(*arguments):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli(list(arguments))
    return code, out.getvalue(), err.getvalue()

with serving() as hub:
    os.environ["HF_ENDPOINT"] = hub.address
    from tympan.bin.main import cli

    config, weights, wav, folder = sys.argv[1:]
    files = ("--asr_train_config", config, "--asr_model_file", weights)
    hub.refuses = True
    refused = run("pack", folder, *files, "--push_to", "me/tiny")
    hub.refuses = False
    published = run("pack", folder, "--push_to", "me/tiny")
    others = {"pytorch_model.bin": b"1", "tf_model.h5": b"2", "onnx/model.onnx": b"3", "valid.acc.ave.pth": b"4"}
    hub.repositories["me/tiny"].update(others)
    heard = [run("transcribe", name, wav, "--maxlenratio", "-3") for name in (folder, "me/tiny")]
    unknown = run("transcribe", "me/other", wav)
    print(json.dumps({
        "address": hub.address, "refused": refused, "published": published, "heard": heard, "unknown": unknown,
        "files": sorted(set(hub.repositories["me/tiny"]) - set(others)), "downloads": sorted(set(hub.downloads)),
    }))
"""


def test_a_folder_is_uploaded_to_the_hub_and_loaded_by_name(golden: Path, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    model, wav = golden / "espnet2" / "transformer", golden / "espnet2" / "an4_trained" / "wav" / "an253-fash-b.wav"
    settings = {"HF_HOME": str(tmp_path), "HF_TOKEN": "hf_test", "HF_HUB_DISABLE_XET": "1"}
    settings |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "NO_PROXY": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-c", SESSION, model / "config.yaml", model / "model.pth", wav, tmp_path / "packed"],
        env={**os.environ, **settings, "PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    code, _, told = seen["refused"]
    assert code == 2
    assert "could not be published as me/tiny" in told
    # The folder was already packed: only publishing was left to do.
    assert seen["published"][:2] == [0, f"published: {seen['address']}/me/tiny\n"]
    assert seen["files"] == ["config.yaml", "model.safetensors"]
    assert seen["downloads"] == ["config.yaml", "model.safetensors"], "one kind of weights"
    assert seen["heard"][0] == seen["heard"][1]
    assert seen["heard"][0][0] == 0
    code, _, told = seen["unknown"]
    assert (code, "the model hub reports" in told) == (2, True)


def test_only_needed_files_are_chosen() -> None:
    tokens = ["config.json", "vocab.json", "tokenizer_config.json", "preprocessor_config.json"]
    extras = ["pytorch_model.bin", "tf_model.h5", "flax_model.msgpack", "language_model/5gram.bin", "onnx/config.json"]
    found = needed_files([*tokens, *extras, "model.safetensors", "model.fp32-00001-of-00002.safetensors"], WEIGHTS)
    assert found == [*tokens, "model.safetensors"]
    assert needed_files([*tokens, *extras], WEIGHTS) == [*tokens, "pytorch_model.bin"]
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    assert needed_files([*tokens, *extras, *shards], WEIGHTS) == [*tokens, *shards]
    packed = ["config.yaml", "ngram.bin", "lm/config.yaml", "tokens.txt", "model.safetensors", "lm/model.safetensors"]
    assert set(needed_files([*packed, "model.pth", "lm/model.pth"], WEIGHTS)) == set(packed)
    espnet2 = ["meta.yaml", "exp/asr/config.yaml", "exp/asr/stats.npz", "exp/asr/valid.acc.ave.pth"]
    found = needed_files([*espnet2, "exp/asr/9epoch.pth"], WEIGHTS, named=["exp/asr/valid.acc.ave.pth"])
    assert found == espnet2


def test_an_unreachable_hub_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = ModuleType("huggingface_hub")

    def unreachable(name: str, **options: object) -> str:
        raise RuntimeError("not in the cache" if options else "nobody answers")

    hub.list_repo_files = hub.snapshot_download = unreachable  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    with pytest.raises(
        UserError, match="me/tiny: no such folder, and the model hub reports: RuntimeError: nobody answers"
    ):
        download("me/tiny", weights=WEIGHTS)


def test_a_downloaded_model_needs_no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hub = ModuleType("huggingface_hub")

    def unreachable(name: str) -> list[str]:
        raise RuntimeError("nobody answers")

    hub.list_repo_files = unreachable  # type: ignore[attr-defined]
    hub.snapshot_download = lambda name, *, local_files_only: str(tmp_path)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    assert download("me/tiny", weights=WEIGHTS) == tmp_path


@pytest.mark.parametrize(
    ("content", "message"),
    [("files: [1, 2]\n", None), ("files: [1\n", "meta.yaml: damaged, or not YAML")],
)
def test_a_damaged_meta_file_of_a_hub(
    content: str, message: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What is wrong in a file is said as for a folder, not as a problem of the hub."""
    (tmp_path / "meta.yaml").write_text(content, encoding="utf-8")
    hub = ModuleType("huggingface_hub")
    hub.list_repo_files = lambda name: ["meta.yaml"]  # type: ignore[attr-defined]
    hub.snapshot_download = lambda name, *, allow_patterns: str(tmp_path)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    if message is None:
        assert download("me/tiny", weights=WEIGHTS) == tmp_path
    else:
        with pytest.raises(UserError, match=message) as raised:
            download("me/tiny", weights=WEIGHTS)
        assert "hub reports" not in str(raised.value)


def test_publishing_problems_are_reported_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="OWNER/NAME"):
        check_can_publish("tiny")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"pip install 'tympan\[hub\]'"):
        check_can_publish("me/tiny")
