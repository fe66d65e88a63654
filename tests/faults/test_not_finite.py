"""A run with nan weights or losses: none of its epochs is called best, and it does not end with success."""

from __future__ import annotations

import logging
import math
import os
from pathlib import Path

import pytest
import torch
from train_corpus import run

from tympan.config.choices import ENCODERS
from tympan.errors import UserError
from tympan.training.checkpoint import Identity
from tympan.training.nbest import average_nbest, link_best
from tympan.training.reporter import Reporter
from tympan.training.writer import ExperimentWriter

CRITERIA = [("valid", "loss", "min"), ("valid", "acc", "max")]


def reporter_of(losses: list[float]) -> Reporter:
    reporter = Reporter()
    reporter.stats = {epoch: {"valid": {"loss": loss, "acc": -loss}} for epoch, loss in enumerate(losses, 1)}
    return reporter


def test_nan_is_never_best(tmp_path: Path) -> None:
    for epoch in (1, 2, 3):
        torch.save({"w": torch.full((2,), float(epoch))}, tmp_path / f"{epoch}epoch.pth")
    assert link_best(tmp_path, reporter_of([math.nan]), 1, CRITERIA) == []
    assert not (tmp_path / "valid.loss.best.pth").exists()
    reporter = reporter_of([math.nan, 3.0, math.inf])
    assert link_best(tmp_path, reporter, 2, CRITERIA) == ["valid.loss", "valid.acc"]
    assert link_best(tmp_path, reporter, 3, CRITERIA) == []
    average_nbest(tmp_path, reporter, CRITERIA, nbests=[3])
    averaged = torch.load(tmp_path / "valid.loss.ave.pth", weights_only=True)
    assert averaged["w"].tolist() == [2.0, 2.0]
    assert not (tmp_path / "valid.loss.ave_3best.pth").exists()


def test_a_model_with_a_weight_that_is_not_finite_is_not_saved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = ExperimentWriter(
        tmp_path, identity=Identity(task="asr", optim="adam", scheduler=None), criteria=CRITERIA, nbests=[2]
    )
    model, reporter = torch.nn.Linear(1, 1), reporter_of([2.0, 1.0])
    writer.epoch_done(1, reporter_of([2.0]), {"w": torch.ones(2), "count": torch.tensor(3)}, model)
    with caplog.at_level(logging.ERROR):
        writer.epoch_done(2, reporter, {"w": torch.tensor([1.0, math.inf]), "count": torch.tensor(3)}, model)
    assert "epoch 2: the model is not saved, because some of its weights are not finite" in caplog.text
    assert not (tmp_path / "2epoch.pth").exists()
    assert {path.readlink().name for path in tmp_path.glob("*.best.pth")} == {"1epoch.pth"}
    assert (tmp_path / "latest.pth").readlink().name == "1epoch.pth"
    writer.finish(reporter)
    assert torch.load(tmp_path / "valid.loss.ave.pth", weights_only=True)["w"].tolist() == [1.0, 1.0]


BROKEN_PARTS = """
import math

import torch

from tympan.models.decoder.transformer import TransformerDecoder
from tympan.models.encoder.conformer import ConformerEncoder


class BrokenEncoder(ConformerEncoder):
    def train(self, mode=True):
        torch.nn.init.constant_(self.embed.out.bias, math.nan)
        return super().train(mode)


class BrokenDecoder(TransformerDecoder):
    def train(self, mode=True):
        with torch.no_grad():
            self.embed[0].weight[1] = math.nan
        return super().train(mode)
"""
"""Parts whose weights become nan. No text has <unk>, so its embedding does not change the loss."""


@pytest.fixture
def broken_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_parts.py").write_text(BROKEN_PARTS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)


@pytest.mark.usefixtures("broken_parts")
@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_run_whose_validation_is_nan_fails(beeps: Path, tmp_path: Path, processes: str) -> None:
    """Its weights are broken from the start, and every update is skipped."""
    done = run(
        beeps, tmp_path / "nan", "--max_epoch", "2", "--encoder", "broken_parts:BrokenEncoder",
        "--max_skipped_steps", "1000", "--nproc", processes,
    )  # fmt: skip
    assert done.returncode == 2
    assert "the validation loss of epoch 2, the last one, is nan; no epoch has a usable model" in done.stderr
    assert "Traceback" not in done.stderr
    assert list((tmp_path / "nan").glob("*epoch.pth")) == []
    assert list((tmp_path / "nan").glob("*.best.pth")) == []
    assert list((tmp_path / "nan").glob("*.ave*.pth")) == []


@pytest.mark.usefixtures("broken_parts")
def test_a_run_whose_last_weights_are_nan_fails(beeps: Path, tmp_path: Path) -> None:
    arguments = ("--max_epoch", "1", "--decoder", "broken_parts:BrokenDecoder")
    done = run(beeps, tmp_path / "nan", *arguments)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "some weights of epoch 1, the last one, are not finite, so its model was not saved" in done.stderr
    assert list((tmp_path / "nan").glob("*.pth")) == [tmp_path / "nan" / "checkpoint.pth"]
    again = run(beeps, tmp_path / "nan", *arguments, "--resume", "true")
    assert (again.returncode, "some weights of epoch 1" in again.stderr) == (2, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--batch_type", "numel", "--batch_bins", "1"), "--batch_bins 1 is too small: the shortest utterance has"),
        (("--frontend_conf", "fmin=9000"), "fmin 9000.0 must be at least 1 Hz below fmax, which is 4000 Hz here"),
        (("--frontend_conf", "fs=0k"), "frontend_conf fs: '0k' must be between 100 Hz and 1 MHz"),
        (("--encoder_conf", "attention_heads=3"), "attention_heads"),
    ],
)
def test_what_only_shows_while_building_is_one_message(
    beeps: Path, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    done = run(beeps, tmp_path, *options)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_what_a_class_raises_becomes_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ENCODERS.get_class("transformer")

    def fail(self: object, **values: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(found, "__init__", fail)
    with pytest.raises(UserError) as refusal:
        ENCODERS.build("transformer", {"num_blocks": 3}, input_size=4)
    assert str(refusal.value) == (
        "encoder_conf: the encoder 'transformer' can't be built with num_blocks=3: division by zero"
    )
