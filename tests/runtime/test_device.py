"""Devices: present ones are found, missing ones are reported, and an out-of-tree device trains."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tympan.errors import UserError
from tympan.runtime import device
from tympan.runtime.device import Found, backend_for, choose_kind, device_of, prepare_environment

STAND_IN = Path(__file__).with_name("stand_in")
SMALL_ASR = Path(__file__).parents[1] / "training"


@pytest.fixture
def nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "find_accelerators", lambda: Found(None, 0))


@pytest.fixture
def two_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "find_accelerators", lambda: Found("cuda", 2))


def test_the_cpu_is_the_default() -> None:
    assert choose_kind(ngpu=0, device=None) == "cpu"
    assert device_of("cpu", local_rank=3) == torch.device("cpu")
    assert backend_for("cpu") == "gloo"


def test_a_card_that_is_not_there(nothing: None) -> None:
    with pytest.raises(
        UserError, match=r"--ngpu 2 needs 2 accelerator device\(s\), but this host has no accelerator.*--ngpu 0"
    ):
        choose_kind(ngpu=2, device=None)
    with pytest.raises(UserError, match=r"--device npu needs 1 npu.*pip install 'tympan\[npu\]'"):
        choose_kind(ngpu=0, device="npu")


def test_too_few_cards(two_cards: None) -> None:
    assert choose_kind(ngpu=2, device=None) == "cuda"
    with pytest.raises(
        UserError, match=r"this host has 2 cuda \(limited by CUDA_VISIBLE_DEVICES, if set\). Use --ngpu 2"
    ):
        choose_kind(ngpu=4, device=None)
    with pytest.raises(UserError, match=r"--device npu needs 1 npu device\(s\), but this host has 2 cuda"):
        choose_kind(ngpu=1, device="npu")


def test_collectives_by_device() -> None:
    assert [backend_for(kind) for kind in ("cuda", "npu")] == ["nccl", "hccl"]
    with pytest.raises(UserError, match=r"torch\.distributed has no backend for mps"):
        backend_for("mps")


def test_the_ascend_environment_keeps_what_the_user_set() -> None:
    environment = {"HCCL_EXEC_TIMEOUT": "7"}
    prepare_environment("npu", environment)
    assert environment["HCCL_EXEC_TIMEOUT"] == "7"
    assert environment["HCCL_CONNECT_TIMEOUT"] == "1800"
    untouched: dict[str, str] = {}
    prepare_environment("cuda", untouched)
    assert not untouched


ON_STAND_IN = """
import json, torch
from small_asr import FeatureBatches, small_asr
from tympan.runtime.comm import Solo
from tympan.runtime.device import backend_for, choose_kind, describe, device_of, find_accelerators
from tympan.runtime.operators import OperatorTrace
from tympan.runtime.parallel import Parallel, ParallelOptions
from tympan.runtime.precision import MasterWeights, choose_precision
from tympan.training.optimizers import build_optimizer
from tympan.training.reporter import EpochReporter
from tympan.config.train import UpdateOptions
from tympan.training.update import Updater, trainable

found = find_accelerators()
kind = choose_kind(ngpu=1, device=None)
def losses(device, **conf):
    precision = choose_precision("float32", device_type=device.type, loss_scale=512.0)
    model = small_asr().to(device)
    named = trainable(model)
    masters = MasterWeights([p for _, p in named], updates="plain")
    updater = Updater(
        Parallel(model, comm=Solo(), device=device, options=ParallelOptions()),
        build_optimizer(torch.optim.Adam, {"lr": 0.01, **conf}, named), None,
        masters=masters, precision=precision, comm=Solo(), device=device, options=UpdateOptions(),
    )
    seen, waits = [], 0
    for batch in FeatureBatches([3, 4]).build_iter(1):
        part = EpochReporter("train", 1, comm=Solo())
        with OperatorTrace(device_type="npu") as trace:
            updater.learn([batch], number=1, reporter=part)
        waits += trace.synchronizations()
        seen.append(part.means()["loss"])
    return seen, {str(p.device) for p in model.parameters()}, waits
device = device_of(kind, local_rank=0)
npu, places, waits = losses(device, fused=True)
cpu, *_ = losses(torch.device("cpu"))
print(json.dumps({"found": str(found), "name": describe(device), "backend": backend_for(kind),
                  "npu": npu, "cpu": cpu, "places": sorted(places), "waits": waits}))
"""


def test_an_npu_appears_and_trains_once_its_package_is_installed() -> None:
    """A fake device is registered with torch. Training on it must give the same values as on the CPU."""
    paths = os.pathsep.join([str(STAND_IN), str(SMALL_ASR)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", ON_STAND_IN], env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr[:3000]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["found"] == "2 npu"
    assert result["name"] == "npu:0 (stand-in)"
    assert result["backend"] == "hccl"
    assert result["places"] == ["npu:0"]
    assert result["npu"] == pytest.approx(result["cpu"], rel=1e-5)
    assert result["waits"] == 0, "a training step must not wait for a value of the device"


def test_variables_of_the_user_are_returned_for_the_log() -> None:
    environment = {"TASK_QUEUE_ENABLE": "2", "ASCEND_RT_VISIBLE_DEVICES": "0,1", "OTHER": "x"}
    found = prepare_environment("npu", environment)
    assert found["TASK_QUEUE_ENABLE"] == "2"
    assert found["ASCEND_RT_VISIBLE_DEVICES"] == "0,1"
    assert "OTHER" not in found
    assert set(device.NPU_ENVIRONMENT) <= set(found)
    assert prepare_environment("cuda", environment) == {}


def test_processes_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    bound: list[list[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3, 8, 9, 10})
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: bound.append(list(cores)))
    shares = [device.pin_to_cores(rank, 3) for rank in range(3)]
    assert shares == bound == [[0, 1], [2, 3], [8, 9, 10]]
    assert device.pin_to_cores(8, 9) == [10]
    assert device.pin_to_cores(0, 9) == []


def test_the_compile_mode_of_an_npu(monkeypatch: pytest.MonkeyPatch) -> None:
    class Module:
        modes: list[bool] = []  # noqa: RUF012

        def set_compile_mode(self, *, jit_compile: bool) -> None:
            self.modes.append(jit_compile)

    monkeypatch.setattr(torch, "get_device_module", lambda kind: Module())
    for kind, mode in (("npu", False), ("npu", True), ("npu", None), ("cpu", False)):
        device.set_compile_mode(kind, mode)
    assert Module.modes == [False, True]
