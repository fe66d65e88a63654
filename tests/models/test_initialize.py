"""Initial values of parameters."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from tests.models.tiny import tiny_model
from tympan.errors import UserError
from tympan.models.initialize import InitKind, initialize, load_pretrained_parts


@pytest.mark.parametrize("kind", ["pytorch", "none", None])
def test_nothing_changes(kind: InitKind | None) -> None:
    one, other = tiny_model(init=None), tiny_model(init=kind)
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


@pytest.mark.parametrize(
    "kind", ["xavier_uniform", "xavier_normal", "kaiming_uniform", "kaiming_normal", "normal", "chainer"]
)
def test_spread_of_weights(kind: InitKind) -> None:
    model = tiny_model(init=kind, encoder_conf={"linear_units": 2000})
    weight = model.encoder.encoders[0].feed_forward.w_1.weight  # (2000, 16)
    expected = {
        "xavier": math.sqrt(2 / 2016),
        "kaiming": math.sqrt(2 / 16),
        "normal": 0.02,
        "chainer": math.sqrt(1 / 16),
    }[kind.split("_")[0]]
    assert weight.std().item() == pytest.approx(expected, rel=0.03)
    assert model.encoder.encoders[0].feed_forward.w_1.bias.eq(0).all()
    assert model.encoder.after_norm.weight.eq(1).all()
    assert model.encoder.encoders[0].conv_module.norm.weight.eq(1).all()
    assert model.decoder.embed[0].weight.std().item() == pytest.approx(1.0, abs=0.2)


def test_gates_start_open() -> None:
    model = tiny_model(
        encoder="e_branchformer",
        init="xavier_uniform",
        encoder_conf={"cgmlp_linear_units": 24},
    )
    conv = model.encoder.encoders[0].cgmlp.csgu.conv
    assert conv.bias.eq(1).all()
    assert conv.weight.abs().max() < 1e-4


def test_forget_gates_of_chainer() -> None:
    sizes = {"hidden_size": 8, "output_size": 16, "num_layers": 1}
    model = tiny_model(
        encoder="rnn", init="chainer", encoder_only=sizes, decoder="rnn", decoder_only={"hidden_size": 8}
    )
    assert model.encoder.enc[0].birnn0.bias_ih_l0.tolist() == [0.0] * 8 + [1.0] * 8 + [0.0] * 16
    assert model.decoder.decoder[0].bias_hh.eq(0).all()
    assert model.decoder.decoder[0].bias_ih[8:16].eq(1).all()


def test_uniform_draws_every_parameter() -> None:
    model = nn.Sequential(nn.Embedding(9, 4), nn.LSTM(4, 5), nn.Linear(5, 3))
    initialize(model, "uniform")
    for parameter in model.parameters():
        assert 0.0 < parameter.abs().max() <= 0.1
        assert parameter.unique().numel() == parameter.numel()


class Unloadable(nn.Module):
    def __init__(self, message: str) -> None:
        super().__init__()
        self.message, self.weight = message, nn.Parameter(torch.zeros(1))

    def load_pretrained(self) -> None:
        raise UserError(self.message)


@pytest.mark.parametrize("message", ["x.pt: no such file", "encoder_conf url: x.pt: no such file"])
def test_a_pretrained_file_is_named_with_its_option(message: str) -> None:
    model = nn.ModuleDict({"encoder": nn.ModuleList([Unloadable(message)])})
    with pytest.raises(UserError, match=r"^encoder_conf.*: x\.pt: no such file$"):
        load_pretrained_parts(model)
