"""Frozen weights, weight decay and initial weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small_asr import small_asr
from tiny import MemoryBatches, tiny_updater
from torch import nn

from tympan.config.choices import OPTIMIZERS
from tympan.errors import UserError
from tympan.models.init_param import init_from, match_table
from tympan.runtime.comm import Solo
from tympan.training.optimizers import build_optimizer, freeze, layer_factors, names_without_decay
from tympan.training.reporter import EpochReporter
from tympan.training.schedulers import WarmupLR
from tympan.training.unfreezing import Unfreezing
from tympan.training.update import add_gradient_noise, trainable


@pytest.mark.parametrize("name", sorted(set(OPTIMIZERS.names()) - {"sparseadam", "muon"}))
def test_every_optimizer_lowers_the_loss(name: str) -> None:
    lr = {"sgd": 0.1, "adadelta": 1.0, "asgd": 0.1, "lbfgs": 0.5, "adafactor": 0.1}.get(name, 0.01)
    updater = tiny_updater(optim=OPTIMIZERS.get_class(name), lr=lr, dropout=0.0)
    data = MemoryBatches([12])
    losses = []
    for _ in range(8):
        part = EpochReporter("train", 1, comm=Solo())
        updater.learn(data.build_iter(1), number=1, reporter=part)
        losses.append(part.means()["loss"])
    assert losses[-1] < losses[0], losses


def test_frozen_weights_stay() -> None:
    model = small_asr()
    frozen = freeze(model, ["encoder.embed", "ctc"])
    assert "encoder.embed.conv.0.weight" in frozen
    assert not {name for name, _ in trainable(model)} & set(frozen)
    with pytest.raises(UserError, match="no weight has this name"):
        freeze(model, ["encoder.emb"])


def test_a_model_that_is_frozen_altogether_has_nothing_to_train() -> None:
    model = small_asr()
    freeze(model, ["encoder", "decoder", "ctc"])
    with pytest.raises(UserError, match="nothing to train"):
        build_optimizer(torch.optim.Adam, {}, trainable(model))


def test_biases_and_norms_do_not_decay() -> None:
    model = small_asr()
    spared = names_without_decay(model)
    assert "encoder.after_norm.weight" in spared
    assert "ctc.ctc_lo.bias" in spared
    assert "ctc.ctc_lo.weight" not in spared
    assert "ctc.ctc_lo.weight" in names_without_decay(model, keys=["ctc_lo"])
    assert "ctc.ctc_lo.bias" not in names_without_decay(model, bias_weight_decay=True)
    assert "encoder.after_norm.weight" not in names_without_decay(model, normalization_weight_decay=True)
    optimizer = build_optimizer(torch.optim.AdamW, {"weight_decay": 0.1}, trainable(model), without_decay=spared)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]


def test_the_learning_rate_falls_from_layer_to_layer() -> None:
    model = small_asr()
    factors = layer_factors(model, 0.5)
    assert factors["decoder.output_layer.weight"] == factors["encoder.encoders.1.norm_ff.weight"] == 1.0
    assert factors["encoder.encoders.0.norm_ff.weight"] == 0.5
    assert factors["encoder.embed.conv.0.weight"] == 0.25
    optimizer = build_optimizer(
        torch.optim.AdamW, {"lr": 0.1, "weight_decay": 0.1}, trainable(model),
        without_decay=names_without_decay(model), lr_factors=factors,
    )  # fmt: skip
    WarmupLR(optimizer, warmup_steps=1)
    rates = {id(parameter): group["lr"] for group in optimizer.param_groups for parameter in group["params"]}
    for name, parameter in trainable(model):
        assert rates[id(parameter)] == pytest.approx(0.1 * factors[name])
    assert {(group["lr"], group["weight_decay"]) for group in optimizer.param_groups} == {
        (rate, decay) for rate in (0.1, 0.05, 0.025) for decay in (0.1, 0.0)
    }


def test_layers_are_unfrozen_from_the_last_one() -> None:
    model = small_asr()
    unfreezing = Unfreezing(model, 2)

    def parts_at(epoch: int) -> set[str]:
        unfreezing.start_epoch(epoch)
        return {".".join(name.split(".")[:3]) for name, _ in trainable(model) if name.startswith("encoder.encoders.")}

    assert parts_at(1) == parts_at(2) == set()
    assert {name.partition(".")[0] for name, _ in trainable(model)} == {"ctc", "decoder"}
    assert parts_at(3) == {"encoder.encoders.1"}
    assert parts_at(5) == {"encoder.encoders.0", "encoder.encoders.1"}
    assert "encoder.embed.conv.0.weight" not in {name for name, _ in trainable(model)}
    unfreezing.start_epoch(7)
    assert len(trainable(model)) == len(list(model.parameters()))


def test_the_table_of_matches_counts_by_part() -> None:
    own = {
        name: torch.zeros(2) for name in ("encoder.encoders.0.a.weight", "encoder.encoders.1.a.weight", "ctc.lo.weight")
    }
    found = {
        "encoder.encoders.0.a.weight": torch.zeros(2),
        "ctc.lo.weight": torch.zeros(3),
        "decoder.x.weight": torch.zeros(1),
    }
    table = match_table(own, found, misshapen=["ctc.lo.weight"])
    rows = [line.split() for line in table.splitlines()[1:]]
    assert rows == [
        ["encoder.encoders.0", "1", "0", "0", "0"],
        ["encoder.encoders.1", "0", "0", "1", "0"],
        ["ctc.lo", "0", "1", "0", "0"],
        ["decoder.x", "0", "0", "0", "1"],
    ]


def test_the_fused_kernel_is_used_unless_asked_otherwise() -> None:
    parameters = trainable(nn.Linear(2, 2))
    assert build_optimizer(torch.optim.Adam, {"lr": 0.1, "fused": None}, parameters).defaults["fused"] is True
    assert build_optimizer(torch.optim.Adam, {"lr": 0.1, "foreach": True}, parameters).defaults["fused"] is None


def test_a_bad_value_is_a_users_mistake() -> None:
    with pytest.raises(UserError, match=r"Adam can.t update weights with lr=-1\.0"):
        build_optimizer(torch.optim.Adam, {"lr": -1.0}, trainable(nn.Linear(2, 2)))


def test_noise_fades() -> None:
    torch.manual_seed(0)
    early, late = torch.zeros(20000), torch.zeros(20000)
    add_gradient_noise([early], 0)
    add_gradient_noise([late], 900)
    assert float(early.std()) == pytest.approx(1.0, rel=0.03)
    assert float(late.std()) == pytest.approx(10**-0.55, rel=0.03)


def test_weights_from_a_file(tmp_path: Path) -> None:
    source, model = small_asr(seed=1), small_asr(seed=2)
    path = tmp_path / "model.pth"
    torch.save(source.state_dict(), path)
    before = model.state_dict()["encoder.after_norm.weight"].clone()
    init_from(model, f"{path}:decoder:decoder:decoder.embed", ignore_mismatch=False)
    assert torch.equal(model.decoder.output_layer.weight, source.decoder.output_layer.weight)
    assert not torch.equal(model.decoder.embed[0].weight, source.decoder.embed[0].weight)
    assert torch.equal(model.state_dict()["encoder.after_norm.weight"], before)
    init_from(model, str(path), ignore_mismatch=False)
    assert torch.equal(model.decoder.embed[0].weight, source.decoder.embed[0].weight)


def test_a_mismatch_is_named_or_skipped(tmp_path: Path) -> None:
    model = small_asr()
    path = tmp_path / "model.pth"
    torch.save({"ctc.ctc_lo.bias": torch.zeros(3), "ctc.ctc_lo.weight": torch.zeros(7, 16), "x": torch.zeros(1)}, path)
    with pytest.raises(UserError, match=r"x: the model has no such weight[\s\S]*ctc.ctc_lo.bias: \(3,\) in the file"):
        init_from(model, str(path), ignore_mismatch=False)
    init_from(model, str(path), ignore_mismatch=True)
    assert float(model.ctc.ctc_lo.weight.abs().sum()) == 0.0
    with pytest.raises(UserError, match="no module 'decodr'"):
        init_from(model, f"{path}::decodr", ignore_mismatch=True)
