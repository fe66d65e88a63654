"""Schedulers compared with their formulas, and when they step."""

from __future__ import annotations

import math

import pytest
import torch
from torch.optim import lr_scheduler

from tympan.errors import UserError
from tympan.training import schedulers
from tympan.training.schedulers import moments


def rates(build, steps: int, *, lr: float = 0.5) -> list[float]:
    """Return the learning rates of update 1, 2, ..."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    scheduler = build(optimizer)
    seen = []
    for _ in range(steps):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return seen


def test_warmup() -> None:
    expected = [0.5 * 4**0.5 * min(n**-0.5, n * 4**-1.5) for n in range(1, 10)]
    assert rates(lambda o: schedulers.WarmupLR(o, 4), 9) == pytest.approx(expected)
    assert max(expected) == expected[3] == pytest.approx(0.5)


def test_noam() -> None:
    expected = [0.5 * 16**-0.5 * min(n**-0.5, n * 4**-1.5) for n in range(1, 10)]
    assert rates(lambda o: schedulers.NoamLR(o, 16, 4), 9) == pytest.approx(expected)


def test_piecewise() -> None:
    def build(optimizer):
        return schedulers.PiecewiseLinearWarmupLR(optimizer, [0, 2, 4], [0.0, 0.2, 1.0])

    tail = [0.5 * 4**0.5 * n**-0.5 for n in (5, 6)]
    assert rates(build, 6) == pytest.approx([0.1, 0.2, 0.6, 1.0, *tail])


def test_warmup_step() -> None:
    def build(optimizer):
        return schedulers.WarmupStepLR(optimizer, warmup_steps=2, steps_per_epoch=2, step_size=1, gamma=0.1)

    # as in ESPnet2: the counter increases when the step number is a multiple of steps_per_epoch
    assert rates(build, 6) == pytest.approx([0.25, 0.5, 0.5, 0.05, 0.05, 0.005])


def test_tristage() -> None:
    def build(optimizer):
        return schedulers.TristageLR(optimizer, 10, 0.2, 0.3, 0.5, init_lr_scale=0.01, final_lr_scale=0.01)

    found = rates(build, 12)
    assert found[0] == pytest.approx(0.5 * (0.01 + 0.99 * 1 / 2))
    assert found[1:4] == pytest.approx([0.5] * 3)
    assert found[9:] == pytest.approx([0.5 * 0.01] * 3)


def test_the_last_stage_of_tristage_ends_at_max_steps() -> None:
    """11 steps: 1 of warmup, 3 of constant lr, and the remaining 7 (as in ESPnet2), not 6 from 11 * 0.6."""

    def build(optimizer):
        return schedulers.TristageLR(optimizer, 11.0, 0.1, 0.3, 0.6, final_lr_scale=0.01)

    assert rates(build, 12)[3:] == pytest.approx([0.5 * 0.01 ** (min(n, 7) / 7) for n in range(9)])
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    with pytest.raises(UserError, match="final_lr_scale must be above 0"):
        schedulers.TristageLR(optimizer, 11, final_lr_scale=0.0)


def test_exponential_decay() -> None:
    def build(optimizer):
        return schedulers.ExponentialDecayWarmup(optimizer, 1.0, 0.01, total_steps=6, warmup_steps=2)

    assert rates(build, 7) == pytest.approx([1.0, 1.0, *[0.01 ** (n / 4) for n in range(5)]])


def test_cosine_restarts() -> None:
    def build(optimizer):
        return schedulers.CosineAnnealingWarmupRestarts(
            optimizer, 4, cycle_mult=2.0, max_lr=1.0, min_lr=0.0, warmup_steps=1, gamma=0.5
        )

    found = rates(build, 11)
    first = [0.0, *[(1 + math.cos(math.pi * n / 3)) / 2 for n in range(3)]]
    second = [0.0, *[0.5 * (1 + math.cos(math.pi * n / 6)) / 2 for n in range(6)]]
    assert found == pytest.approx([*first, *second])


def test_warmup_then_plateau() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = schedulers.WarmupReduceLROnPlateau(optimizer, warmup_steps=2, factor=0.1, patience=0)
    seen = []
    for loss in (3.0, 3.0, 3.0):
        scheduler.step()
        scheduler.step()
        seen.append(optimizer.param_groups[0]["lr"])
        scheduler.step(loss)
    assert seen == pytest.approx([1.0, 1.0, 0.1])


@pytest.mark.parametrize(
    "build",
    [
        lambda o: schedulers.WarmupLR(o, 4),
        lambda o: schedulers.CosineAnnealingWarmupRestarts(o, 4, warmup_steps=1),
        lambda o: schedulers.WarmupStepLR(o, 2, 2),
        lambda o: schedulers.TristageLR(o, 10),
        lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=40),
        lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=3),
    ],
)
def test_state_restores_the_schedule(build) -> None:
    whole = rates(build, 20)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    scheduler = build(optimizer)
    for _ in range(9):
        optimizer.step()
        scheduler.step()
    again = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    resumed = build(again)
    again.load_state_dict(optimizer.state_dict())
    resumed.load_state_dict({k: v for k, v in scheduler.state_dict().items() if not callable(v)})
    seen = []
    for _ in range(11):
        seen.append(again.param_groups[0]["lr"])
        again.step()
        resumed.step()
    assert seen == pytest.approx(whole[9:])


def test_when_each_steps() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    assert moments(schedulers.WarmupLR(optimizer)) == {"batch"}
    assert moments(lr_scheduler.StepLR(optimizer, 3)) == {"epoch"}
    assert moments(lr_scheduler.ReduceLROnPlateau(optimizer)) == {"valid"}
    assert moments(schedulers.WarmupReduceLROnPlateau(optimizer)) == {"batch", "valid"}


def test_mistakes_are_named() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    with pytest.raises(UserError, match="must be 1"):
        schedulers.TristageLR(optimizer, 10, 0.2, 0.2, 0.2)
    with pytest.raises(UserError, match="both lists must have the same length"):
        schedulers.PiecewiseLinearWarmupLR(optimizer, [0, 1], [0.0])
