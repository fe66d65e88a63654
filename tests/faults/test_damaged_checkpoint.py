"""If the newest checkpoint is damaged in any way, the previous one is used, with a warning."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tympan.errors import UserError
from tympan.training.checkpoint import (
    DAMAGED,
    NAME,
    PREVIOUS,
    Identity,
    load_checkpoint,
    read_reporter,
    save_checkpoint,
)

MODEL = {"encoder.weight": torch.arange(9000, dtype=torch.float32).view(90, 100), "encoder.bias": torch.zeros(90)}
IDENTITY = Identity(task="asr", optim="adam", scheduler="warmuplr", tokens={"text": ("<blank>", "a", "<sos/eos>")})


def state(step: int) -> dict[str, Any]:
    moments = {name: torch.full_like(weight, step) for name, weight in MODEL.items()}
    return {
        "model": {name: weight + step for name, weight in MODEL.items()},
        "optimizers": [{"state": {0: moments}, "param_groups": [{"lr": 0.5, "betas": (0.9, 0.98), "params": [0, 1]}]}],
        "schedulers": [{"last_epoch": step, "_last_lr": [0.1]}],
        "reporter": {"stats": {1: {"train": {"loss": 3.0}}}},
        "position": {"epoch": 1, "step": step},
        "part": None,
    }


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    for step in (1, 2):
        save_checkpoint(tmp_path, state(step), identity=IDENTITY)
    return tmp_path


def loaded_step(directory: Path, load: Callable[[dict[str, Any]], None] = lambda content: None) -> int:
    """The step of the checkpoint that is used, which must be as it was saved."""
    content = load_checkpoint(directory, identity=IDENTITY, model_state=MODEL, load=load)
    assert content is not None
    step = int(content["position"]["step"])
    expected = state(step)
    assert all(torch.equal(content["model"][name], weight) for name, weight in expected["model"].items())
    assert content["optimizers"][0]["param_groups"] == expected["optimizers"][0]["param_groups"]
    assert content["schedulers"] == expected["schedulers"]
    assert content["reporter"] == expected["reporter"]
    return step


def damaged_copies(whole: bytes, chance: random.Random) -> Iterator[bytes]:
    directory = whole.rindex(b"PK\x01\x02", 0, whole.index(b"PK\x01\x02") + 4)
    for _ in range(60):  # blocks
        start = chance.randrange(len(whole))
        block = bytes(len(whole[start : start + 4096])) if chance.random() < 0.5 else chance.randbytes(4096)
        yield (whole[:start] + block + whole[start + 4096 :])[: len(whole)]
    for _ in range(120):  # bits of the zip directory and of the headers
        place = chance.randrange(directory, len(whole)) if chance.random() < 0.7 else chance.randrange(2000)
        yield whole[:place] + bytes([whole[place] ^ 1 << chance.randrange(8)]) + whole[place + 1 :]
    for _ in range(20):  # ends
        yield whole[: chance.randrange(len(whole))]
    yield whole + b"\0" * 100
    yield whole.replace(b"encoder.weight", b"encoder.weighu")
    yield whole.replace(b"data.pkl", b"data.pk\xff")


@pytest.mark.parametrize("seed", range(2))
def test_damaged_bytes(saved: Path, seed: int) -> None:
    whole = (saved / NAME).read_bytes()
    steps = []
    for content in damaged_copies(whole, random.Random(seed)):
        (saved / NAME).write_bytes(content)
        steps.append(loaded_step(saved))
    assert steps.count(1) > 150  # a changed date in the zip directory has no effect


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["pipe", "device", "directory", "loop", "nothing"])
def test_something_else_in_its_place(saved: Path, kind: str) -> None:
    path = saved / NAME
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind != "nothing":
        path.symlink_to({"device": "/dev/zero", "loop": NAME}[kind])
    assert loaded_step(saved) == 1
    save_checkpoint(saved, state(3), identity=IDENTITY)
    assert loaded_step(saved) == 3


def test_the_damaged_checkpoint_never_becomes_the_previous_one(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed while it saves the next checkpoint must leave one that can be read."""
    (saved / NAME).write_bytes(b"damaged")
    assert loaded_step(saved) == 1
    assert (saved / DAMAGED).read_bytes() == b"damaged"

    def killed(source: Path, target: Path) -> None:
        if Path(target).name == NAME:
            raise KeyboardInterrupt
        rename(source, target)

    rename = os.replace
    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(saved, state(3), identity=IDENTITY)
    monkeypatch.undo()
    assert loaded_step(saved) == 1


def edits() -> Iterator[Callable[[dict[str, Any]], object]]:
    for key in ("model", "optimizers", "schedulers", "reporter", "tokens", "optim", "scheduler", "task"):
        yield lambda content, key=key: content.pop(key)
        yield lambda content, key=key: content.update({key: 7})
        yield lambda content, key=key: content.update({key: None})
    yield lambda content: content["position"].pop("step")
    yield lambda content: content.update(position="here")
    yield lambda content: content["model"].update({"encoder.bias": torch.ones(90)})
    yield lambda content: content["optimizers"][0]["param_groups"][0].update(lr="fast")


@pytest.mark.parametrize("edit", list(edits()))
def test_edited_fields(saved: Path, edit: Callable[[dict[str, Any]], object], caplog: pytest.LogCaptureFixture) -> None:
    content = torch.load(saved / NAME, weights_only=True)
    edit(content)
    torch.save(content, saved / NAME)
    with caplog.at_level(logging.WARNING):
        assert loaded_step(saved) == 1
    assert "is damaged" in caplog.text


def use(content: dict[str, Any]) -> None:
    """Read a checkpoint as the trainer does."""
    for name, weight in MODEL.items():
        assert content["model"][name].shape == weight.shape
    float(content["optimizers"][0]["param_groups"][0]["lr"])
    int(content["schedulers"][0]["last_epoch"])
    dict(content["reporter"]["stats"].items())
    int(content["position"]["step"])


@pytest.mark.parametrize("edit", list(edits())[:-2])
def test_edited_fields_of_a_checkpoint_without_a_digest(
    saved: Path, edit: Callable[[dict[str, Any]], object], caplog: pytest.LogCaptureFixture
) -> None:
    """Checkpoints of an earlier version: an unreadable one falls back, one of another training run is rejected."""
    content = torch.load(saved / NAME, weights_only=True)
    del content["sha256"]
    edit(content)
    torch.save(content, saved / NAME)
    message = ""
    with caplog.at_level(logging.WARNING):
        try:
            assert loaded_step(saved, use) in (1, 2)
        except UserError as error:
            message = str(error)
    assert message == "" or "belongs to a different run" in message


def test_a_state_that_can_not_be_loaded_falls_back(saved: Path) -> None:
    seen = []

    def load(content: dict[str, Any]) -> None:
        seen.append(content["position"]["step"])
        if len(seen) == 1:
            raise TypeError("unexpected")

    assert loaded_step(saved, load) == 1
    assert seen == [2, 1]


def test_two_damaged_checkpoints_are_one_message(saved: Path) -> None:
    for name in (NAME, PREVIOUS):
        (saved / name).write_bytes((saved / name).read_bytes().replace(b"data.pkl", b"data.pk\xff"))
    with pytest.raises(UserError, match="no checkpoint can be read"):
        loaded_step(saved)
    with pytest.raises(UserError, match=r"no readable checkpoint\.pth"):
        read_reporter(saved)


def test_the_history_is_read_from_the_one_before(saved: Path) -> None:
    content = torch.load(saved / NAME, weights_only=True)
    del content["sha256"], content["reporter"]
    torch.save(content, saved / NAME)
    assert read_reporter(saved).stats == {1: {"train": {"loss": 3.0}}}
