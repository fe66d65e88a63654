"""The model to decode with: which epochs are averaged, and why."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tympan.recipe.averaging import choose_epochs, write_model
from tympan.training.checkpoint import Identity, save_checkpoint

CER = ("valid", "cer_ctc", "min")
ACC = ("valid", "acc", "max")


def test_epochs_from_before_the_best_region_are_left_out() -> None:
    values = {1: 1.0, 2: 0.9, 3: 0.7, 4: 0.45, 5: 0.4}
    for which in ("last", "best"):
        found = choose_epochs([1, 2, 3, 4, 5], values, criterion=CER, number=10, which=which)
        assert found.epochs == [4, 5]
        assert "without 1, 2, 3: their cer_ctc is much worse than the best, 0.4" in found.reason


def test_a_finished_training_averages_as_many_as_asked() -> None:
    values = {epoch: 0.9 - 0.5 / epoch for epoch in range(1, 51)}
    last = choose_epochs(range(30, 51), values, criterion=ACC, number=10, which="last")
    assert (last.epochs, last.reason) == (list(range(41, 51)), "the last 10")
    values[33] = 0.9
    best = choose_epochs(range(30, 51), values, criterion=ACC, number=3, which="best")
    assert (best.epochs, best.reason) == ([33, 49, 50], "the best 3 by valid.acc")


def test_epochs_that_diverged_are_left_out() -> None:
    values = {1: 2.0, 2: 0.3, 3: 0.25, 4: 1.9, 5: float("nan")}
    assert choose_epochs([2, 3, 4, 5], values, criterion=CER, number=2, which="last").epochs == [2, 3]


def test_without_validation_results_the_last_are_averaged() -> None:
    found = choose_epochs([1, 2, 3], {}, criterion=CER, number=2, which="last")
    assert (found.epochs, found.reason) == ([2, 3], "the last ones; the log has no valid.cer_ctc")


@pytest.mark.parametrize(("number", "expected"), [(10, 2.5), (1, 3.0)])
def test_the_criterion_is_the_one_of_the_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], number: int, expected: float
) -> None:
    """A model that has no `acc` is chosen by what its configuration names."""
    (tmp_path / "config.yaml").write_text("best_model_criterion:\n- [valid, cer_ctc, min]\n- [valid, loss, min]\n")
    stats = {epoch: {"valid": {"cer_ctc": value, "loss": 1.0}} for epoch, value in ((1, 0.9), (2, 0.31), (3, 0.3))}
    identity = Identity(task="asr", optim="adam", scheduler=None, tokens={}, options={})
    save_checkpoint(
        tmp_path, {"reporter": {"stats": stats}, "model": {}, "position": {"epoch": 4, "step": 0}}, identity=identity
    )
    for epoch in stats:
        torch.save({"weight": torch.tensor(float(epoch))}, tmp_path / f"{epoch}epoch.pth")
    write_model(tmp_path, tmp_path / "model.pth", number=number, which="best")
    assert torch.load(tmp_path / "model.pth", weights_only=True)["weight"] == expected
    assert "by valid.cer_ctc" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("criterion", "values"),
    [("[valid, acc, max]", {}), ("[valid, cer_ctc, min]", {"cer_ctc": 1.0})],
)
def test_a_criterion_that_says_nothing_is_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], criterion: str, values: dict[str, float]
) -> None:
    """Not in the log, or the same for all epochs. Before, untrained epochs were averaged, or taken as the best."""
    (tmp_path / "config.yaml").write_text(f"best_model_criterion:\n- {criterion}\n")
    stats = {epoch: {"valid": {**values, "loss": loss}} for epoch, loss in ((1, 70.0), (2, 50.0), (3, 30.0), (4, 30.5))}
    identity = Identity(task="asr", optim="adam", scheduler=None, tokens={}, options={})
    state = {"reporter": {"stats": stats}, "model": {}, "position": {"epoch": 5, "step": 0}}
    save_checkpoint(tmp_path, state, identity=identity)
    for epoch in stats:
        torch.save({"weight": torch.tensor(float(epoch))}, tmp_path / f"{epoch}epoch.pth")
    write_model(tmp_path, tmp_path / "model.pth", number=10, which="last")
    write_model(tmp_path, tmp_path / "model.pth", number=1, which="best")
    said = capsys.readouterr().out
    assert "mean of epochs 3, 4 (the last 10, without 1, 2: their loss is much worse than the best, 30)" in said
    assert "epoch 3 (the best by valid.loss)" in said
