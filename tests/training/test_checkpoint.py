"""Checkpoints: written atomically, rejected by a different run, replaced by the previous one when damaged."""

from __future__ import annotations

import logging
import resource
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tympan.errors import UserError
from tympan.training.checkpoint import (
    NAME,
    Identity,
    changed_options,
    load_checkpoint,
    report_changes,
    save_checkpoint,
    set_aside,
)

MODEL = {"w": torch.ones(2, 3), "b": torch.zeros(3)}
IDENTITY = Identity(
    task="asr", optim="adam", scheduler=None, tokens={"text": ("<blank>", "a", "<sos/eos>")}, options={"lr": 1}
)


def state(step: int) -> dict:
    return {"model": MODEL, "position": {"epoch": 1, "step": step}, "reporter": {"stats": {}}}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_checkpoint(tmp_path, state(1), identity=IDENTITY)
    save_checkpoint(tmp_path, state(2), identity=IDENTITY)
    return tmp_path


def test_the_newest_is_taken_and_the_one_before_kept(saved: Path) -> None:
    content = load_checkpoint(saved, identity=IDENTITY, model_state=MODEL)
    assert content is not None
    assert content["position"]["step"] == 2
    assert torch.load(saved / "checkpoint.prev.pth", weights_only=True)["position"]["step"] == 1
    assert sorted(path.name for path in saved.iterdir()) == ["checkpoint.prev.pth", "checkpoint.pth"]


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_a_damaged_newest_falls_back_with_a_warning(saved: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    path = saved / "checkpoint.pth"
    content = bytearray(path.read_bytes())
    if damage == "flipped":
        content[content.index(b"\x00\x00\x80\x3f")] ^= 0xFF  # inside the ones of `w`
    path.write_bytes({"cut": content[: len(content) // 2], "flipped": content, "empty": b""}[damage])
    with caplog.at_level(logging.WARNING):
        loaded = load_checkpoint(saved, identity=IDENTITY, model_state=MODEL)
    assert loaded is not None
    assert loaded["position"]["step"] == 1
    assert "damaged" in caplog.text


def test_both_damaged_is_said(saved: Path) -> None:
    for name in ("checkpoint.pth", "checkpoint.prev.pth"):
        (saved / name).write_bytes(b"PK")
    with pytest.raises(UserError, match="no checkpoint can be read"):
        load_checkpoint(saved, identity=IDENTITY, model_state=MODEL)


def test_none_is_none(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path, identity=IDENTITY, model_state=MODEL) is None


@pytest.mark.parametrize(
    ("identity", "model", "message"),
    [
        (replace(IDENTITY, task="lm"), MODEL, "task: asr in the checkpoint, lm here"),
        (replace(IDENTITY, optim="sgd"), MODEL, "optim: adam in the checkpoint, sgd here"),
        (
            replace(IDENTITY, tokens={"text": ("<blank>", "b", "<sos/eos>")}),
            MODEL,
            "index 1: 'a' in the checkpoint, 'b' here",
        ),
        (IDENTITY, {**MODEL, "w": torch.ones(4, 3)}, r"weight w: \(2, 3\) in the checkpoint, \(4, 3\) here"),
        (IDENTITY, {"w": MODEL["w"]}, "weight b: only in the checkpoint"),
    ],
)
def test_another_training_is_refused_with_the_difference(
    saved: Path, identity: Identity, model: dict, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        load_checkpoint(saved, identity=identity, model_state=model)


def test_changed_options_are_listed(saved: Path) -> None:
    content = load_checkpoint(saved, identity=IDENTITY, model_state=MODEL)
    assert content is not None
    assert changed_options(content, replace(IDENTITY, options={"lr": 2})) == {"lr": (1, 2)}


def test_changes_without_effect_are_told(caplog: pytest.LogCaptureFixture) -> None:
    then = {"optim_conf": {"lr": 0.1, "eps": 1.0}, "batch_size": 4, "max_epoch": 3, "resume": False}
    now = {"optim_conf": {"lr": 0.2, "eps": 1.0}, "batch_size": 8, "max_epoch": 5, "resume": True}
    caplog.set_level(logging.INFO)
    report_changes({"options": then, "position": {"epoch": 2, "step": 0}}, replace(IDENTITY, options=now))
    assert "optim_conf.lr is now 0.2, but this run keeps 0.1 from the checkpoint" in caplog.text
    assert "option changed since the checkpoint: max_epoch: 3 -> 5" in caplog.text
    assert "conf.eps" not in caplog.text
    assert "resume" not in caplog.text
    assert "within an epoch" not in caplog.text
    report_changes({"options": then, "position": {"epoch": 2, "step": 3}}, replace(IDENTITY, options=now))
    assert "within an epoch, and batch_size changed" in caplog.text


def test_a_full_disk_is_told_as_one_and_leaves_the_checkpoint(saved: Path) -> None:
    before = (saved / "checkpoint.pth").read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            save_checkpoint(saved, {**state(3), "model": torch.ones(1_000_000)}, identity=IDENTITY)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (saved / "checkpoint.pth").read_bytes() == before
    assert {path.name for path in saved.iterdir()} == {"checkpoint.pth", "checkpoint.prev.pth"}


def test_loading_runs_no_code(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    torch.save({"position": Evil()}, tmp_path / "checkpoint.pth")
    with pytest.raises(UserError, match="no checkpoint can be read"):
        load_checkpoint(tmp_path, identity=IDENTITY, model_state=MODEL)
    assert not (tmp_path / "ran").exists()


def test_a_fresh_run_sets_an_old_state_aside(saved: Path) -> None:
    set_aside(saved)
    assert [path.name for path in saved.iterdir()] == ["checkpoint.replaced.pth"]


def test_a_checkpoint_of_the_first_release_is_taken_up(saved: Path) -> None:
    """Version 0.1 called the task `kind`, supported only one text, and saved no digest."""
    content = torch.load(saved / NAME, weights_only=True)
    del content["sha256"]
    content["kind"] = content.pop("task")
    content["tokens"] = content["tokens"]["text"]
    torch.save(content, saved / NAME)
    loaded = load_checkpoint(saved, identity=IDENTITY, model_state=MODEL)
    assert loaded is not None
    assert loaded["position"]["step"] == 2
    other = Identity(task="lm", optim="adam", scheduler=None, tokens=IDENTITY.tokens)
    with pytest.raises(UserError, match="task: asr in the checkpoint, lm here"):
        load_checkpoint(saved, identity=other, model_state=MODEL)
