"""Weights & Biases: what is logged, with a fake package and, if it is installed, with the real one."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tiny import MemoryBatches, tiny_trainer

from tympan.errors import UserError
from tympan.runtime.comm import Solo
from tympan.training.reporter import EpochReporter, Reporter
from tympan.training.watchers import WeightsAndBiases


class FakeRun:
    """Records the calls."""

    def __init__(self) -> None:
        self.logged: list[dict[str, Any]] = []
        self.axes: dict[str, str] = {}
        self.is_finished = False

    def define_metric(self, name: str, *, step_metric: str) -> None:
        self.axes[name] = step_metric

    def log(self, values: dict[str, Any]) -> None:
        self.logged.append(values)

    def finish(self) -> None:
        self.is_finished = True


class FakeWandb(ModuleType):
    def __init__(self) -> None:
        super().__init__("wandb")
        self.errors = ModuleType("wandb.errors")
        self.errors.Error = type("Error", (Exception,), {})  # type: ignore[attr-defined]
        self.options: dict[str, Any] = {}
        self.refusal: str | None = None

    def init(self, **options: Any) -> FakeRun:
        if self.refusal is not None:
            raise self.errors.Error(self.refusal)
        self.options = options
        return FakeRun()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    module = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def watcher(directory: Path, *, is_resumed: bool = False, id: str | None = None) -> WeightsAndBiases:
    return WeightsAndBiases(directory=directory, config={"lr": 1}, id=id, is_resumed=is_resumed, project="p", name="n")


def test_the_values_and_their_axes(fake: FakeWandb, tmp_path: Path) -> None:
    shown = watcher(tmp_path)
    assert {name: fake.options[name] for name in ("project", "name", "resume")} == {
        "project": "p", "name": "n", "resume": "allow",
    }  # fmt: skip
    part = EpochReporter("train", 1, comm=Solo(), batches_before=4)
    part.register_value("lr", 2.0)
    part.batches = 3
    part.log_message()
    shown.logged(part)
    reporter = Reporter()
    reporter.stats = {1: {"train": {"loss": 3.0}, "valid": {"loss": 4.0}}}
    shown.epoch_done(1, reporter, None)  # type: ignore[arg-type]
    shown.close()
    assert shown.run.logged == [
        {"by_batch/lr": 2.0, "batch": 7},
        {"train/loss": 3.0, "valid/loss": 4.0, "epoch": 1},
    ]
    assert shown.run.axes == {"by_batch/*": "batch", "train/*": "epoch", "valid/*": "epoch"}
    assert shown.run.is_finished


def test_only_a_resumed_training_goes_on_in_its_run(fake: FakeWandb, tmp_path: Path) -> None:
    watcher(tmp_path)
    first = fake.options["id"]
    watcher(tmp_path, is_resumed=True)
    assert fake.options["id"] == first
    watcher(tmp_path)
    second = fake.options["id"]
    assert second != first
    watcher(tmp_path, is_resumed=True, id="mine")
    assert fake.options["id"] == "mine"


def test_a_resumed_training_that_had_no_run_begins_one(fake: FakeWandb, tmp_path: Path) -> None:
    watcher(tmp_path, is_resumed=True)
    assert fake.options["id"]


def test_a_refusal_is_a_users_mistake(fake: FakeWandb, tmp_path: Path) -> None:
    fake.refusal = "No API key configured"
    with pytest.raises(UserError, match=r"No API key configured.*wandb login.*WANDB_MODE=offline"):
        watcher(tmp_path)


def test_the_package_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=r"pip install 'tympan\[wandb\]'"):
        watcher(tmp_path)


def test_the_package_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="the extra 'wandb' is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for epochs, is_resumed in ((1, False), (2, True)):
        trainer = tiny_trainer(tmp_path, data=MemoryBatches([2, 2]), max_epoch=epochs)
        trainer.writer.watchers = [watcher(tmp_path, is_resumed=is_resumed)]  # type: ignore[attr-defined]
        trainer.fit()
        trainer.writer.close()
    ids = {path.name.rpartition("-")[2] for path in (tmp_path / "wandb").glob("offline-run-*")}
    assert ids == {(tmp_path / "wandb" / "run_id").read_text(encoding="utf-8").strip()}
    with pytest.raises(UserError, match="Run ID"):
        watcher(tmp_path, id="no/id")
