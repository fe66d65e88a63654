"""N processes give the same result as one, with uneven splits, empty ranks, accumulation and sharding."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_script import scenarios

from tympan.runtime.comm import Solo

SCRIPT = Path(__file__).with_name("rank_script.py")
FAST = [
    "float64",
    "float32",
    "accum",
    "fsdp",
    "fsdp_accum",
    "fsdp_round_trip",
    "bf16_hook",
    "fp16_hook",
    "powersgd",
    "words",
]
SAME = 1e-7
"""Tolerance of weights after 20 updates. If a gradient is zero (bias of a key), Adam divides rounding errors by 1e-8.
"""


def run_ranks(size: int, directory: Path, wanted: list[str]) -> dict[str, Any]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT)]
    processes = [
        subprocess.Popen([*command, str(rank), str(size), str(directory), ",".join(wanted)], env=environment)
        for rank in range(size)
    ]
    assert [process.wait(timeout=280) for process in processes] == [0] * size
    results: dict[str, Any] = torch.load(directory / "results.pt", weights_only=True)
    return results


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    torch.set_num_threads(1)
    return scenarios(Solo(), ["float64", "float32", "accum"])


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_ranks(2, tmp_path_factory.mktemp("two"), FAST)


def largest_difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    assert a.keys() == b.keys()
    return max(float((a[name].double() - b[name].double()).abs().max()) for name in a)


def test_two_ranks_give_the_losses_of_one(alone: dict[str, Any], two: dict[str, Any]) -> None:
    assert two["float64"]["losses"] == pytest.approx(alone["float64"]["losses"], abs=1e-9)
    assert len(two["float32"]["losses"]) == 20
    assert two["float32"]["losses"] == pytest.approx(alone["float32"]["losses"], rel=1e-4)


def test_two_ranks_give_the_weights_of_one(alone: dict[str, Any], two: dict[str, Any]) -> None:
    """The state includes the running statistics of batch normalization."""
    assert largest_difference(alone["float64"]["weights"], two["float64"]["weights"]) < SAME
    assert largest_difference(alone["accum"]["weights"], two["accum"]["weights"]) < SAME


def test_sharded_weights_learn_the_same(alone: dict[str, Any], two: dict[str, Any]) -> None:
    assert largest_difference(alone["float64"]["weights"], two["fsdp"]["weights"]) < SAME
    assert largest_difference(alone["accum"]["weights"], two["fsdp_accum"]["weights"]) < SAME


def test_a_sharded_state_is_the_whole_one_and_can_be_taken_up(alone: dict[str, Any], two: dict[str, Any]) -> None:
    whole, sharded = alone["float64"]["optimizer"], two["fsdp"]["optimizer"]
    assert whole["state"].keys() == sharded["state"].keys()
    for number, state in whole["state"].items():
        assert torch.allclose(state["exp_avg"], sharded["state"][number]["exp_avg"], atol=1e-9)
    assert largest_difference(two["fsdp_round_trip"]["first"], two["fsdp_round_trip"]["second"]) == 0.0


@pytest.mark.parametrize("hook", ["fp16_hook", "powersgd"])
def test_compressed_gradients_still_learn(two: dict[str, Any], hook: str) -> None:
    losses = two[hook]["losses"]
    assert sum(losses[10:]) < sum(losses[:10])


def test_a_compression_that_the_backend_lacks_is_refused_kindly(two: dict[str, Any]) -> None:
    assert "--ddp_comm_hook bf16" in two["bf16_hook"]
    assert "Use fp16" in two["bf16_hook"]


def test_words_between_ranks(two: dict[str, Any]) -> None:
    assert two["words"] == {"sum": [2.0, 1.0], "any": True, "none": False, "gather": ["from 0", "from 1"]}


@pytest.mark.slow
@pytest.mark.parametrize("size", [4, 8])
def test_more_ranks_too(alone: dict[str, Any], tmp_path: Path, size: int) -> None:
    many = run_ranks(size, tmp_path, ["float64", "float32"])
    assert many["float64"]["losses"] == pytest.approx(alone["float64"]["losses"], abs=1e-9)
    assert many["float32"]["losses"] == pytest.approx(alone["float32"]["losses"], rel=1e-4)
    assert largest_difference(alone["float64"]["weights"], many["float64"]["weights"]) < SAME
