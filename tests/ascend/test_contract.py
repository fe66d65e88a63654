"""Tympan against the torch-npu wheel for this torch, without a card: names, kernels and messages (make ascend-check)"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from npu_wheel import Wheel, find_wheel
from stubs import build_stubs, missing_tools

from tympan.runtime import ascend, device
from tympan.runtime.operators import is_view

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
HERE = Path(__file__).resolve().parent
SOURCE = HERE.parents[1] / "src" / "tympan"
LISTED = HERE / "host_operators.txt"

# With wrapped tensors torch takes the overload with lengths as tensors; with a device's own, the one with lists.
INSTEAD = {
    "aten::_ctc_loss.Tensor": "aten::_ctc_loss",
    "aten::_ctc_loss_backward.Tensor": "aten::_ctc_loss_backward",
}
FOR_TORCH = (
    "manual_seed_all",
    "get_amp_supported_dtype",
    "device_count",
    "current_device",
    "set_device",
    "synchronize",
)
"""Names of torch.npu that torch.accelerator, torch.amp and the generators use."""


@pytest.fixture(scope="session")
def wheel() -> Wheel:
    try:
        return find_wheel()
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"the torch-npu wheel can't be downloaded: {error}")


@pytest.fixture(scope="session")
def workloads(wheel: Wheel, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, list[str]]]:
    """Operators and types of every workload, on the stand-in."""
    paths = [HERE.parent / "runtime" / "stand_in", HERE.parent / "integration"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "workloads.py"), str(tmp_path_factory.mktemp("workloads")), str(wheel.path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, dict[str, list[str]]] = json.loads(done.stdout)
    return found


def test_the_wheel_is_for_this_torch(wheel: Wheel) -> None:
    assert f"Requires-Dist: torch=={torch.__version__.partition('+')[0]}" in wheel.metadata()
    assert len(wheel.kernels) > 1000


def test_its_libraries_are_those_that_are_looked_for(wheel: Wheel) -> None:
    assert set(ascend.LIBRARIES) <= wheel.needed_libraries


def test_every_name_of_the_device_module_exists(wheel: Wheel) -> None:
    used = {name for path in (SOURCE / "runtime").glob("*.py") for name in _device_names(path)}
    assert {"get_device_name", "is_bf16_supported", "set_compile_mode"} <= used
    assert {*used, *FOR_TORCH} <= wheel.names_of("torch_npu.npu")


def test_hccl_is_registered_for_the_device(wheel: Wheel) -> None:
    calls = [node for node in ast.walk(wheel.source("torch_npu._init.registry.distributed")) if _registers(node)]
    registered = {ast.literal_eval(call.args[0]): _devices(call) for call in calls}
    assert registered[device.BACKENDS["npu"]] == ["npu"]


@pytest.mark.parametrize("name", sorted(set(device.NPU_ENVIRONMENT) - {"HCCL_WHITELIST_DISABLE"}))
def test_the_variables_that_are_set_are_read(wheel: Wheel, name: str) -> None:
    """HCCL_WHITELIST_DISABLE is read by CANN."""
    assert name.encode() in wheel.library


def test_recurrent_layers_have_kernels(wheel: Wheel) -> None:
    """The stand-in can't run them: on a device they are one operator."""
    for operator in ("lstm.input", "gru.input", "lstm.data", "_fused_adam_", "_fused_adamw_"):
        assert wheel.has_kernel(f"aten::{operator}"), operator


def test_every_operator_has_a_kernel_or_is_listed(wheel: Wheel, workloads: dict[str, Any]) -> None:
    on_host: dict[str, list[str]] = {}
    for workload, found in workloads.items():
        assert len(found["operators"]) > 30, workload
        for operator in found["operators"]:
            if not _runs(wheel, operator):
                on_host.setdefault(operator, []).append(workload)
    lines = LISTED.read_text(encoding="utf-8").splitlines()
    listed = {line for line in lines if line and not line.startswith("#")}
    assert set(on_host) == listed, f"{LISTED} and what was found differ: {on_host}"


def test_no_operator_is_one_that_may_fall_back(wheel: Wheel, workloads: dict[str, Any]) -> None:
    """Kernels that move to the host under conditions say so in a message."""
    used = {operator for found in workloads.values() for operator in found["operators"]}
    assert not {name for name in used if name.removeprefix("aten::").partition(".")[0] in wheel.cautions}


def test_types(workloads: dict[str, Any]) -> None:
    """Only torch's own GradScaler uses float64, for the inverse of the loss scale."""
    for name, found in workloads.items():
        types = set(found["types"])
        assert not types & {"complex64", "complex128"}, name
        assert ": O" in name or "float64" not in types, name
        assert ("bfloat16" in types) == ("use_amp" in name), name
        assert ("float16" in types) == (": O" in name), name


@pytest.fixture(scope="session")
def installed(wheel: Wheel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, unpacked."""
    if missing := missing_tools():
        pytest.skip(f"stub libraries need {', '.join(missing)}")
    if f"cp{sys.version_info.major}{sys.version_info.minor}" not in wheel.path.name:
        pytest.skip(f"{wheel.path.name} is for another Python")
    directory = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel.path) as archive:
        archive.extractall(directory)
    return directory


@pytest.fixture(scope="session")
def stubs(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_stubs(installed / "torch_npu", tmp_path_factory.mktemp("cann") / "lib")


def test_messages_without_cann(installed: Path) -> None:
    done = _tympan(installed, None, "check_install", "--device", "npu")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert re.search(r"DOES NOT WORK: .*libascendcl.so.*source .*set_env.sh", done.stdout)
    assert _tympan(installed, None, "check_install").returncode == 0


def test_messages_with_stub_libraries_and_no_cards(installed: Path, stubs: Path) -> None:
    done = _tympan(installed, stubs, "check_install", "--device", "npu")
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"DOES NOT WORK: .*torch-npu and CANN are loaded, but there is no card", done.stdout), done.stdout
    assert _tympan(installed, stubs, "check_install").returncode == 0


def test_messages_with_another_cann(installed: Path, tmp_path: Path) -> None:
    old = build_stubs(installed / "torch_npu", tmp_path / "lib", without=["aclrtDeviceGetBareTgid"])
    done = _tympan(installed, old, "check_install", "--device", "npu")
    assert "does not have the function aclrtDeviceGetBareTgid, which torch-npu" in done.stdout, done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_the_kernels_read_from_the_library_are_those_that_are_registered(
    wheel: Wheel, installed: Path, stubs: Path
) -> None:
    code = (
        "import json, torch, torch_npu\n"
        "names = torch._C._dispatch_get_all_op_names()\n"
        "has = torch._C._dispatch_has_kernel_for_dispatch_key\n"
        "print(json.dumps([name for name in names if name.startswith('aten::') and has(name, 'PrivateUse1')]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=_environment(installed, stubs), capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr[-2000:]
    registered = json.loads(done.stdout.splitlines()[-1])
    assert len(registered) == len(wheel.kernels)
    assert [name for name in registered if not wheel.has_kernel(name)] == []


def _runs(wheel: Wheel, operator: str) -> bool:
    operator = INSTEAD.get(operator, operator)
    namespace, _, rest = operator.partition("::")
    if namespace == "c10d":
        # torch itself passes collectives of any device to its backend
        return bool(torch._C._dispatch_has_kernel_for_dispatch_key(operator, "PrivateUse1"))
    name, _, overload = rest.partition(".")
    function = getattr(getattr(torch.ops.aten, name), overload or "default")
    return wheel.has_kernel(operator) or is_view(function)


def _device_names(path: Path) -> set[str]:
    """Names that functions of a file take from a device module."""
    found = set()
    for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(function, ast.FunctionDef) or "get_device_module" not in ast.unparse(function):
            continue
        text = ast.unparse(function)
        found |= set(re.findall(r"get_device_module\(\w+\)\.(\w+)", text))
        found |= set(re.findall(r"getattr\((?:module|torch\.get_device_module\(.*?\)), '(\w+)'", text))
        found |= set(re.findall(r"\bmodule\.(\w+)", text))
    return found


def _registers(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).endswith("register_backend")


def _devices(call: ast.Call) -> Any:
    return next(ast.literal_eval(item.value) for item in call.keywords if item.arg == "devices")


def _environment(installed: Path, stubs: Path | None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ASCEND", "LD_LIBRARY"))}
    paths = {} if stubs is None else {"LD_LIBRARY_PATH": str(stubs)}
    return {**kept, **paths, "PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


def _tympan(installed: Path, stubs: Path | None, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = _environment(installed, stubs)
    del environment["TORCH_DEVICE_BACKEND_AUTOLOAD"]
    command = [sys.executable, "-m", "tympan", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
