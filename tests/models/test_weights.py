"""Weights files: what is read, what is renamed, what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tympan.errors import UserError
from tympan.models.weights import fill_weights, load_weights


def test_names_of_older_espnet2_checkpoints(tmp_path: Path) -> None:
    """Up to 2025 ESPnet2 wrote encoder.embed.out.0.weight; today it is encoder.embed.out.weight."""
    torch.save(
        {"encoder.embed.out.0.weight": torch.ones(2), "decoder.embed.0.weight": torch.ones(3)}, tmp_path / "m.pth"
    )
    assert set(load_weights(tmp_path / "m.pth")) == {"encoder.embed.out.weight", "decoder.embed.0.weight"}


def test_safetensors_and_checkpoints_give_the_same(tmp_path: Path) -> None:
    weights = {"a": torch.arange(3.0)}
    save_file(weights, tmp_path / "m.safetensors")
    torch.save({"model": weights, "epoch": 3}, tmp_path / "checkpoint.pth")
    for name in ("m.safetensors", "checkpoint.pth"):
        assert torch.equal(load_weights(tmp_path / name)["a"], weights["a"])


class Evil:
    def __reduce__(self) -> tuple:
        return os.mkdir, ("was_run",)


def test_code_in_a_file_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"a": Evil()}, tmp_path / "evil.pth")
    with pytest.raises(UserError, match="could run code"):
        load_weights(tmp_path / "evil.pth")
    assert not (tmp_path / "was_run").exists()


@pytest.mark.parametrize("name", ["broken.pth", "broken.safetensors"])
def test_damaged_files(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"PK\x03\x04 nothing more")
    with pytest.raises(UserError, match=name):
        load_weights(tmp_path / name)


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"missing: bias\n.*unknown: scale\n.*weight is \(3, 3\) in the file, \(2, 3\)"):
        fill_weights(nn.Linear(3, 2), {"weight": torch.ones(3, 3), "scale": torch.ones(1)}, "m.pth", "config.yaml")
