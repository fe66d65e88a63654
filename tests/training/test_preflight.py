"""Mistakes that would stop a run hours later are reported before the first update."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import MemoryBatches, tiny_trainer, tiny_updater
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau

from tympan.config.asr import AsrTrainConfig
from tympan.errors import UserError
from tympan.training.optimizers import build_optimizer
from tympan.training.preflight import check_run, one_message
from tympan.training.schedulers import build_scheduler


def test_a_plateau_scheduler_needs_its_criterion(tmp_path: Path) -> None:
    updater = tiny_updater(scheduler=ReduceLROnPlateau)
    with pytest.raises(UserError, match=r"val_scheduler_criterion.*valid\.cer.*valid\.acc, valid\.loss"):
        check_run(tiny_trainer(tmp_path, updater=updater, val_scheduler_criterion=("valid", "cer")))


def test_the_criterion_of_no_plateau_does_not_matter(tmp_path: Path) -> None:
    check_run(tiny_trainer(tmp_path, val_scheduler_criterion=("valid", "cer")))


def test_patience_needs_its_criterion(tmp_path: Path) -> None:
    criterion = ("valid", "cer", "min")
    check_run(tiny_trainer(tmp_path, early_stopping_criterion=criterion))
    with pytest.raises(UserError, match=r"early_stopping_criterion.*valid\.cer"):
        check_run(tiny_trainer(tmp_path, early_stopping_criterion=criterion, patience=2))


def test_no_model_would_be_kept(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"best_model_criterion.*valid\.cer"):
        check_run(tiny_trainer(tmp_path, best_model_criterion=[("valid", "cer", "min")]))


def test_one_of_several_criteria_may_be_missing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    criteria = [("valid", "cer", "min"), ("valid", "loss", "min")]
    check_run(tiny_trainer(tmp_path, best_model_criterion=criteria))
    assert "no best models are kept by valid.cer" in caplog.text


def test_looking_changes_nothing(tmp_path: Path) -> None:
    looked, other = tiny_trainer(tmp_path / "a"), tiny_trainer(tmp_path / "b")
    check_run(looked)
    looked.fit()
    other.fit()
    for name, tensor in other.updater.parallel.full_model_state().items():
        assert torch.equal(looked.updater.parallel.full_model_state()[name], tensor)


def test_a_run_that_only_reads_has_no_values(tmp_path: Path) -> None:
    check_run(tiny_trainer(tmp_path, no_forward_run=True, patience=1, early_stopping_criterion=("valid", "x", "min")))


def test_a_schedule_that_ends_before_the_run(tmp_path: Path) -> None:
    """Two epochs of three batches with two batches per update: four updates."""

    def trainer(total_steps: int) -> None:
        updater = tiny_updater(scheduler=lambda optimizer: OneCycleLR(optimizer, max_lr=0.1, total_steps=total_steps))
        check_run(tiny_trainer(tmp_path, data=MemoryBatches([2, 2, 2]), updater=updater, max_epoch=2, accum_grad=2))

    trainer(4)
    with pytest.raises(UserError, match=r"total_steps is 3.*4 updates"):
        trainer(3)


def test_values_that_a_schedule_refuses() -> None:
    optimizer = build_optimizer(torch.optim.Adam, {"lr": 0.1}, [("w", torch.nn.Parameter(torch.ones(2)))])
    with pytest.raises(UserError, match=r"scheduler 'onecyclelr' can't be built with max_lr=0.1: .*total_steps"):
        build_scheduler("onecyclelr", {"max_lr": 0.1}, optimizer)


def test_what_the_first_batch_raises_is_one_message_with_the_values(caplog: pytest.LogCaptureFixture) -> None:
    confs: dict[str, Any] = {"encoder_conf": {"num_layers": 4, "hidden_size": 5}, "frontend_conf": {"fs": "8k"}}
    config = AsrTrainConfig(encoder="rnn", postencoder="length_adaptor", train_dtype="O1", **confs)
    with pytest.raises(UserError) as refusal, caplog.at_level("DEBUG"), one_message(config, is_own_task=False):
        raise IndexError("index out of range\nin self")
    assert str(refusal.value) == (
        "the model can't process the first batch: IndexError: index out of range. Some of these values probably do not "
        "fit together: frontend_conf fs=8k; encoder_conf hidden_size=5; postencoder "
        "length_adaptor; train_dtype O1 (--log_level DEBUG shows where it failed)"
    )
    assert "Traceback" in caplog.text


@pytest.mark.parametrize("error", [RuntimeError("DefaultCPUAllocator: can't allocate memory"), UserError("mine")])
def test_other_errors_of_the_first_batch_stay(error: Exception) -> None:
    with pytest.raises(type(error)) as raised, one_message(AsrTrainConfig(), is_own_task=False):
        raise error
    assert raised.value is error


def test_an_error_of_an_own_class_keeps_its_traceback() -> None:
    with pytest.raises(IndexError), one_message(AsrTrainConfig(encoder="my.package:Encoder"), is_own_task=False):
        raise IndexError
