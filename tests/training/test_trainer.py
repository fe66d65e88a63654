"""The training loop: what it writes, and that a resumed run gives the same result."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from small_asr import FeatureBatches, small_asr
from tiny import IDENTITY, MemoryBatches, tiny_trainer, tiny_updater, weights

from tympan.errors import UserError
from tympan.runtime.comm import Solo
from tympan.training.checkpoint import load_checkpoint
from tympan.training.reporter import EpochReporter


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_a_run_writes_espnet2s_files(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path, max_epoch=3, keep_nbest_models=(2,))
    trainer.fit()
    names = {path.name for path in tmp_path.iterdir()}
    assert {
        "checkpoint.pth",
        "checkpoint.prev.pth",
        "3epoch.pth",
        "latest.pth",
        "valid.acc.best.pth",
        "valid.acc.ave.pth",
    } <= names
    assert {"valid.loss.ave_2best.pth", "train.loss.ave_2best.pth"} <= names
    best = trainer.reporter.ranking("valid", "loss", "min")
    loaded = [torch.load(tmp_path / f"{epoch}epoch.pth", weights_only=True) for epoch, _ in best[:2]]
    average = torch.load(tmp_path / "valid.loss.ave_2best.pth", weights_only=True)
    assert torch.allclose(average["out.weight"], (loaded[0]["out.weight"] + loaded[1]["out.weight"]) / 2)


def test_two_runs_are_identical(tmp_path: Path) -> None:
    first, second = tiny_trainer(tmp_path / "a"), tiny_trainer(tmp_path / "b")
    first.fit()
    second.fit()
    assert same(weights(first), weights(second))


@pytest.mark.parametrize("accum_grad", [1, 3])
@pytest.mark.parametrize("cut", range(1, 8))
def test_resuming_at_any_saved_step_gives_the_same_bits(tmp_path: Path, cut: int, accum_grad: int) -> None:
    options = {"max_epoch": 2, "accum_grad": accum_grad, "save_interval_steps": 1}
    whole = tiny_trainer(tmp_path / "whole", **options)
    whole.fit()
    broken = tiny_trainer(tmp_path / "broken", **options)
    updates = 0
    learn = broken.updater.learn

    def dying(*args: object, **kwargs: object) -> None:
        nonlocal updates
        updates += 1
        if updates > cut:
            raise KeyboardInterrupt
        learn(*args, **kwargs)  # type: ignore[arg-type]

    broken.updater.learn = dying  # type: ignore[method-assign,assignment]
    total = 2 * -(-4 // accum_grad)
    if cut < total:
        with pytest.raises(KeyboardInterrupt):
            broken.fit()
    else:
        broken.fit()
    resumed = tiny_trainer(tmp_path / "broken", updater=tiny_updater(seed=77), **options)
    state = load_checkpoint(tmp_path / "broken", identity=IDENTITY, model_state=weights(resumed))
    assert state is not None
    resumed.load_state_dict(state)
    resumed.fit()
    assert same(weights(whole), weights(resumed))
    assert whole.reporter.stats[2]["train"]["loss"] == resumed.reporter.stats[2]["train"]["loss"]
    assert whole.reporter.stats[1]["valid"]["acc"] == resumed.reporter.stats[1]["valid"]["acc"]


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("position", "epoch"), "x"),
        (("position", "epoch"), 10**6),
        (("position", "epoch"), 0),
        (("position", "step"), -5),
        (("position", "step"), 1.5),
        (("position", "step"), None),
        (("part",), 7),
        (("part",), {}),
        (("part", "batches"), None),
        (("part", "total"), {"loss": "high"}),
        (("part", "window"), {"loss": (1.0,)}),
        (("reporter", "stats"), {1: {"train": {"loss": "low"}}}),
    ],
)
def test_a_checkpoint_without_a_digest_is_read_before_it_is_used(
    tmp_path: Path, place: tuple[str, ...], value: object
) -> None:
    """Such as one of the first release: what is damaged must not fail in the middle of the next epoch."""
    trainer = tiny_trainer(tmp_path, max_epoch=1, save_interval_steps=1)
    trainer.fit()
    content = torch.load(tmp_path / "checkpoint.prev.pth", weights_only=True)
    del content["sha256"]
    *outer, last = place
    inner = content
    for name in outer:
        inner = inner[name]
    inner[last] = value
    torch.save(content, tmp_path / "checkpoint.pth")
    resumed = tiny_trainer(tmp_path, updater=tiny_updater(seed=77), max_epoch=2)
    state = load_checkpoint(tmp_path, identity=IDENTITY, model_state=weights(resumed), load=resumed.load_state_dict)
    assert state is not None
    assert state["position"] == {"epoch": 1, "step": 4}
    assert (tmp_path / "checkpoint.damaged.pth").exists()
    resumed.fit()


@pytest.mark.parametrize(
    ("minutes", "expected"), [(None, [0]), (5.0, [0]), (0.0, [1, 2, 3, 4, 0]), (0.001, [1, 2, 3, 4, 0])]
)
def test_checkpoints_are_saved_by_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minutes: float | None, expected: list[int]
) -> None:
    """Four steps of 0.1 s each, and the end of the epoch."""
    clock = itertools.count(step=0.1)
    monkeypatch.setattr("tympan.training.trainer.time.monotonic", lambda: next(clock))
    trainer = tiny_trainer(tmp_path, max_epoch=1, save_interval_minutes=minutes)
    saved: list[int] = []
    monkeypatch.setattr(trainer.writer, "checkpoint", lambda state: saved.append(state["position"]["step"]))
    trainer.fit()
    assert saved == expected


def test_accumulation_equals_the_large_batch(tmp_path: Path) -> None:
    """Includes uneven batches and an incomplete last group."""
    large = MemoryBatches([7, 2], seed=3)
    small = MemoryBatches([4, 2, 1, 2], seed=3)
    one = tiny_trainer(tmp_path / "one", data=large, updater=tiny_updater(train_dtype="float64", dropout=0.0))
    many = tiny_trainer(
        tmp_path / "many", data=small, updater=tiny_updater(train_dtype="float64", dropout=0.0), accum_grad=3
    )
    one.fit()
    many.fit()
    for name, tensor in weights(one).items():
        assert torch.allclose(tensor, weights(many)[name], rtol=0, atol=1e-12), name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"early_stopping_criterion": ("train", "acd", "max"), "patience": 1},
            "--early_stopping_criterion train acd max:",
        ),
        ({"best_model_criterion": [("train", "acd", "max")]}, "--best_model_criterion train acd max: epoch 1 has no"),
        (
            {"val_scheduler_criterion": ("train", "acd")},
            "--val_scheduler_criterion train acd: epoch 1 has no statistic",
        ),
    ],
)
def test_a_training_statistic_that_does_not_exist_is_named(tmp_path: Path, options: Any, message: str) -> None:
    """Before, such a run was never stopped early."""
    updater = tiny_updater(scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau)
    with pytest.raises(UserError, match=message):
        tiny_trainer(tmp_path, updater=updater, max_epoch=3, **options).fit()


def test_early_stopping_and_its_message(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    updater = tiny_updater(lr=0.0)
    trainer = tiny_trainer(tmp_path, updater=updater, max_epoch=9, patience=1)
    with caplog.at_level(logging.INFO):
        trainer.fit()
    assert max(trainer.reporter.stats) == 3
    assert "has not been improved 2 epochs" in caplog.text


def test_the_log_line_is_espnet2s(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        tiny_trainer(tmp_path, max_epoch=1).fit()
    line = next(record.message for record in caplog.records if "1epoch:train:1-2batch: " in record.message)
    for key in ("iter_time", "forward_time", "loss", "acc", "backward_time", "grad_norm", "clip", "loss_scale",
                "optim_step_time", "optim0_lr0", "train_time"):  # fmt: skip
        assert f"{key}=" in line
    assert "1epoch results: [train] " in caplog.text
    assert ", [valid] loss=" in caplog.text


def test_a_bad_utterance_is_named_and_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = MemoryBatches([4, 4, 3, 4])
    data.spoiled = {5: float("nan")}
    trainer = tiny_trainer(tmp_path, data=data, max_epoch=1)
    with caplog.at_level(logging.WARNING):
        trainer.fit()
    assert "utt5" in caplog.text
    assert trainer.updater.skipped_total == 1
    assert all(torch.isfinite(tensor).all() for tensor in weights(trainer).values())
    assert torch.isfinite(torch.tensor(trainer.reporter.stats[1]["train"]["loss"]))


@pytest.mark.parametrize(
    "precision", [{}, {"loss_scale": 512.0}, {"train_dtype": "bfloat16"}, {"train_dtype": "O2", "loss_scale": 64.0}]
)
def test_deferred_checks_skip_the_same_updates(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, precision: dict[str, object]
) -> None:
    """As on an accelerator, where the kernel skips the update and the host checks later."""
    results = []
    for defers in (False, True):
        data = MemoryBatches([4, 4, 3, 4])
        data.spoiled = {5: float("nan")}
        trainer = tiny_trainer(tmp_path / str(defers), data=data, updater=tiny_updater(defers=defers, **precision))
        start = weights(trainer)
        with caplog.at_level(logging.WARNING):
            trainer.fit()
        assert trainer.updater.skipped_total == 2
        results.append(weights(trainer))
        assert not same(start, results[-1])
    assert same(*results)
    assert caplog.text.count("utt5") == 4


def test_a_skipped_step_leaves_the_statistics_alone(tmp_path: Path) -> None:
    updater = tiny_updater(model=small_asr())
    data = FeatureBatches([3, 3])
    batches = list(data.build_iter(1))
    batches[0].tensors["speech"][0, 0, 0] = float("nan")
    updater.parallel.model.train()
    updater.learn(batches, number=2, reporter=EpochReporter("train", 1, comm=Solo()))
    assert updater.skipped_total == 1
    assert all(torch.isfinite(tensor).all() for tensor in weights(updater).values())


def test_too_many_in_a_row_stop_with_a_diagnosis(tmp_path: Path) -> None:
    data = MemoryBatches([4, 4, 3, 4])
    data.spoiled = dict.fromkeys(range(15), float("inf"))
    with pytest.raises(UserError, match=r"3 updates in a row.*learning rate 0.01.*Likely"):
        tiny_trainer(tmp_path, data=data, updater=tiny_updater(max_skipped_steps=3)).fit()


def test_no_forward_run_only_reads(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path, no_forward_run=True)
    before = weights(trainer)
    trainer.fit()
    assert same(before, weights(trainer))
    assert trainer.reporter.stats[2]["train"]["total_count"] == 8


def test_gradient_noise_does_not_depend_on_the_ranks_generator() -> None:
    """Dropout uses a different seed on each rank. Gradient noise must not, or the weights would differ."""
    found = []
    for seed in (1, 2):
        updater = tiny_updater(dropout=0.0, grad_noise=True)
        torch.manual_seed(seed)
        updater.learn(MemoryBatches([4]).build_iter(1), number=1, reporter=EpochReporter("train", 1, comm=Solo()))
        found.append(weights(updater))
    assert same(*found)


def test_an_anomaly_names_its_utterances(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = MemoryBatches([2, 2])
    data.spoiled = {row: float("nan") for row in range(4)}
    with torch.autograd.set_detect_anomaly(True), pytest.raises(RuntimeError, match="nan values"):
        tiny_trainer(tmp_path, data=data).train_epoch()
    assert "the batch that failed has the utterances utt" in caplog.text
