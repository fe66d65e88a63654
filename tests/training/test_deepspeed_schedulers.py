"""DeepSpeed's schedules, compared with the rates that the classes of DeepSpeed 0.19.8 give."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tympan.training.schedulers import build_scheduler

EXPECTED: list[tuple[str, dict[str, Any], list[float]]] = [
    (
        "deepspeedwarmuplr",
        {"warmup_min_lr": 0.1, "warmup_max_lr": 0.9, "warmup_num_steps": 4},
        [0.1, 0.1, 0.5, 0.733985, 0.9, 0.9, 0.9, 0.9],
    ),
    (
        "deepspeedwarmuplr",
        {"warmup_num_steps": 4, "warmup_type": "linear"},
        [0.0, 0.0, 0.125, 0.25, 0.375, 0.5, 0.5, 0.5],
    ),
    ("deepspeedwarmuplr", {"warmup_num_steps": 1}, [0.0, 0.0, 0.5, 0.5, 0.5]),
    (
        "deepspeedwarmuplr",
        {"total_num_steps": 8, "warmup_num_steps": 3, "warmup_max_lr": 0.001},
        [0.0, 0.0, 0.00063092975, 0.001, 0.001, 0.0008, 0.0006, 0.0004, 0.0002, 0.0, 0.0, 0.0],
    ),
    (
        "deepspeedwarmuplr",
        {"total_num_steps": 7, "warmup_num_steps": 3, "warmup_max_lr": 0.2, "warmup_type": "linear"},
        [0.0, 0.0, 0.066666667, 0.13333333, 0.2, 0.15, 0.1, 0.05, 0.0, 0.0],
    ),
    (
        "deepspeedwarmupcosinelr",
        {"total_num_steps": 8, "warmup_num_steps": 3, "warmup_min_ratio": 0.2},
        [0.0, 0.1, 0.3523719, 0.5, 0.45225902, 0.32727152, 0.17277848, 0.047790977, 5e-05, 5e-05, 5e-05],
    ),
    (
        "deepspeedwarmupcosinelr",
        {"total_num_steps": 7, "warmup_num_steps": 3, "warmup_type": "linear", "cos_min_ratio": 0.1},
        [0.0, 0.0, 0.16666667, 0.33333333, 0.43409903, 0.275, 0.11590097, 0.05, 0.05, 0.05],
    ),
]


@pytest.mark.parametrize(("name", "conf", "expected"), EXPECTED)
def test_rates_of_deepspeed(name: str, conf: dict[str, Any], expected: list[float]) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    scheduler = build_scheduler(name, conf, optimizer)
    found = []
    for _ in expected:
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert found == pytest.approx(expected, rel=1e-7)
