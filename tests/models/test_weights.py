"""Weights are read without running code from the file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tympan.errors import UserError
from tympan.models.encoder.conformer import ConformerEncoder
from tympan.models.encoder.contextual_block import ContextualBlockTransformerEncoder
from tympan.models.weights import load_weights, released_names

STATE = {"a.weight": torch.arange(6.0).view(2, 3), "a.bias": torch.ones(2)}


def test_formats(tmp_path: Path) -> None:
    torch.save(STATE, tmp_path / "model.pth")
    torch.save({"model": STATE, "optimizers": [{}], "epoch": 3}, tmp_path / "checkpoint.pth")
    save_file(STATE, tmp_path / "model.safetensors")
    for name in ("model.pth", "checkpoint.pth", "model.safetensors"):
        found = load_weights(tmp_path / name)
        assert found.keys() == STATE.keys()
        assert all(torch.equal(found[key], STATE[key]) for key in STATE)


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("was-run",)


def test_code_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"a": Evil()}, tmp_path / "evil.pth")
    with pytest.raises(UserError, match="could run code"):
        load_weights(tmp_path / "evil.pth")
    assert not (tmp_path / "was-run").exists()


@pytest.mark.parametrize("name", ["broken.pth", "broken.safetensors"])
def test_broken_files_are_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"nothing that anyone could load")
    with pytest.raises(UserError, match=name):
        load_weights(tmp_path / name)


def test_missing_and_foreign_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such weights file"):
        load_weights(tmp_path / "none.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(UserError, match="does not contain weights"):
        load_weights(tmp_path / "list.pth")


def test_a_lightning_checkpoint_gives_its_model(tmp_path: Path) -> None:
    """ESPnet2's Lightning trainer saves `{"state_dict": {"model.encoder...": ...}, "epoch": ...}`."""
    weight = torch.arange(3.0)
    torch.save({"state_dict": {"model.encoder.x": weight}, "epoch": 3}, tmp_path / "a.ckpt")
    assert load_weights(tmp_path / "a.ckpt").keys() == {"encoder.x"}
    torch.save({"state_dict": {"encoder.x": weight}}, tmp_path / "b.ckpt")
    torch.testing.assert_close(load_weights(tmp_path / "b.ckpt")["encoder.x"], weight)


class Model(nn.Module):
    """Like a recognizer, a module whose encoder is called `encoder`."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder


@pytest.mark.parametrize("input_layer", ["conv2d", "conv2d6", "conv1d2"])
def test_saved_names_are_those_of_every_release(tmp_path: Path, input_layer: str) -> None:
    """Releases of ESPnet2 up to 202511 only know `embed.out.0`, and load other names without a message."""
    encoder = ConformerEncoder(input_size=20, output_size=8, attention_heads=2, linear_units=8, num_blocks=1,
                               input_layer=input_layer, pos_enc_layer_type="scaled_abs_pos",
                               selfattention_layer_type="selfattn")  # fmt: skip
    model = Model(encoder)
    saved = released_names(model.state_dict(), model)
    new = {"encoder.embed.out.0.weight", "encoder.embed.out.0.bias", "encoder.embed.out.1.alpha"}
    assert saved.keys() - model.state_dict().keys() == new
    torch.save(saved, tmp_path / "model.pth")
    found = load_weights(tmp_path / "model.pth")
    assert found.keys() == model.state_dict().keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in model.state_dict().items())


def test_saved_names_of_a_projection_without_positions_are_its_own() -> None:
    """The contextual block encoders add their positions outside of the input layer; conv2d8 is a class of its own."""
    block = ContextualBlockTransformerEncoder(
        input_size=20, output_size=8, attention_heads=2, linear_units=8, num_blocks=1
    )
    eighth = ConformerEncoder(input_size=20, output_size=8, attention_heads=2, linear_units=8, num_blocks=1,
                              input_layer="conv2d8")  # fmt: skip
    for model in (Model(block), Model(eighth)):
        assert released_names(model.state_dict(), model).keys() == model.state_dict().keys()
