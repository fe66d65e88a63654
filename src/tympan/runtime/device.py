"""Select the device with torch.accelerator, so that all other code treats CUDA, Ascend NPU and others alike."""

from __future__ import annotations

import functools
import importlib.metadata
import logging
import os
from collections.abc import MutableMapping
from dataclasses import dataclass

import torch

from tympan.errors import UserError
from tympan.runtime import ascend

BACKENDS = {"cuda": "nccl", "npu": "hccl", "xpu": "xccl", "cpu": "gloo"}
"""The torch.distributed backend of each kind of device."""

INSTALL = {
    "npu": "install CANN and the torch-npu release that matches torch's minor version: pip install 'tympan[npu]'",
    "cuda": "install a CUDA build of torch and a driver (pytorch.org/get-started), and check nvidia-smi",
    "mps": "use macOS 12.3 or newer on Apple silicon",
}

NPU_ENVIRONMENT = {
    "HCCL_CONNECT_TIMEOUT": "1800",
    "HCCL_EXEC_TIMEOUT": "1200",
    "HCCL_WHITELIST_DISABLE": "1",
    "TASK_QUEUE_ENABLE": "1",
    "COMBINED_ENABLE": "1",
}
"""Environment variables that the Ascend port of the AISHELL recipe sets. Values set by the user are kept."""


NPU_VARIABLES = (
    "ASCEND_HOME_PATH",
    "ASCEND_RT_VISIBLE_DEVICES",
    "ASCEND_LAUNCH_BLOCKING",
    "ASCEND_GLOBAL_LOG_LEVEL",
    "ACL_OP_COMPILER_CACHE_MODE",
    "ACL_OP_COMPILER_CACHE_DIR",
    "CPU_AFFINITY_CONF",
    "HCCL_IF_IP",
    "HCCL_SOCKET_IFNAME",
    "PYTORCH_NPU_ALLOC_CONF",
)
"""Other variables that change how an NPU runs. Tympan does not set them, but prints those that are set."""

_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
_WARNED = "TYMPAN_ASCEND_WARNED"


@dataclass(frozen=True)
class Found:
    """Kind and number of the accelerators of this host."""

    kind: str | None
    count: int
    problem: str | None = None
    """Why Ascend cards can't be used although torch-npu is installed, with the remedy."""

    def __str__(self) -> str:
        return f"{self.count} {self.kind}" if self.kind else "no accelerator"


def find_accelerators() -> Found:
    """Find the accelerators that *_VISIBLE_DEVICES allows. Importing torch_npu registers Ascend devices with torch."""
    problem = None
    if ascend.is_installed():
        # torch_npu reads some of the variables while it is imported
        prepare_environment("npu", os.environ)
        problem = ascend.load()
    _load_other_backends()
    if not torch.accelerator.is_available():
        if problem is None and ascend.is_installed():
            problem = ascend.no_card()
        return Found(None, 0, problem)
    accelerator = torch.accelerator.current_accelerator()
    assert accelerator is not None
    return Found(accelerator.type, torch.accelerator.device_count())


def choose_kind(*, ngpu: int, device: str | None) -> str:
    """Return the kind of device for --ngpu and --device. Raise UserError if this host does not have it."""
    if device == "cpu" or (device is None and ngpu == 0):
        if ngpu > 0:
            raise UserError(
                f"--device cpu can't be used with --ngpu {ngpu}. For {ngpu} processes on the CPU, use --nproc {ngpu}"
            )
        _warn_of_ascend()
        return "cpu"
    found = find_accelerators()
    wanted = device or found.kind or "accelerator"
    needed = max(1, ngpu)
    asked = f"--device {device}" if device else f"--ngpu {ngpu}"
    if found.problem is not None and wanted in ("npu", "accelerator"):
        raise UserError(
            f"{asked} needs {needed} {wanted} device(s), but this host has {found}: {found.problem}. "
            "Use the CPU with --ngpu 0; 'tympan check_install' shows what is missing"
        )
    if found.kind is None or (device is not None and device != found.kind):
        hint = INSTALL.get(wanted, "; ".join(f"{kind}: {text}" for kind, text in INSTALL.items() if kind != "mps"))
        raise UserError(
            f"{asked} needs {needed} {wanted} device(s), but this host has {found}. "
            f"Use the CPU with --ngpu 0, or {hint}"
        )
    if found.count < needed:
        raise UserError(
            f"{asked} needs {needed} {wanted} device(s), but this host has {found} "
            f"(limited by {_visibility(wanted)}, if set). Use --ngpu {found.count}"
        )
    return found.kind


def named_device(name: str) -> torch.device:
    """Return the device with a name such as `cpu`, `cuda` or `npu:1`. Raise UserError if this host does not have it."""
    kind, _, number = str(name).partition(":")
    if kind == "cpu":
        return torch.device("cpu")
    found = find_accelerators()
    if kind != found.kind:
        hint = f"; {INSTALL[kind]}" if kind in INSTALL else ""
        if kind == "npu" and found.problem is not None:
            hint = f": {found.problem}"
        here = "'cpu'" if found.kind is None else f"'cpu' or '{found.kind}'"
        raise UserError(f"device '{name}': this host has {found}, use {here}{hint}")
    if number and not (number.isdecimal() and int(number) < found.count):
        raise UserError(
            f"device '{name}': this host has {found}, counted from 0 (limited by {_visibility(kind)}, if set)"
        )
    return torch.device(str(name))


def device_of(kind: str, *, local_rank: int) -> torch.device:
    """Return the device of this process, and make it the current device."""
    if kind == "cpu":
        return torch.device("cpu")
    torch.accelerator.set_device_index(local_rank % max(1, torch.accelerator.device_count()))
    return torch.device(kind, torch.accelerator.current_device_index())


def prepare_environment(kind: str, environment: MutableMapping[str, str]) -> dict[str, str]:
    """Set the variables that this kind of device expects, unless the user has set them. Return all of them."""
    if kind != "npu":
        return {}
    for name, value in NPU_ENVIRONMENT.items():
        environment.setdefault(name, value)
    return {name: environment[name] for name in (*NPU_ENVIRONMENT, *NPU_VARIABLES) if name in environment}


def set_compile_mode(kind: str, jit_compile: bool | None) -> None:
    """Choose on an NPU between operators compiled for every shape (True) and operators for any shape (False).

    None keeps the default of torch-npu. Other devices have no such choice.
    """
    if kind == "npu" and jit_compile is not None:
        torch.get_device_module(kind).set_compile_mode(jit_compile=jit_compile)


def pin_to_cores(local_rank: int, processes: int) -> list[int]:
    """Let this process use only its share of the CPU cores of the host. Return them, empty if that is impossible."""
    if not hasattr(os, "sched_setaffinity"):
        return []
    cores = sorted(os.sched_getaffinity(0))
    share = cores[local_rank * len(cores) // processes : (local_rank + 1) * len(cores) // processes]
    if share:
        os.sched_setaffinity(0, share)
    return share


def backend_for(kind: str, asked: str = "nccl") -> str:
    """Return the torch.distributed backend for this kind of device. ESPnet2's default, nccl, selects it by device."""
    if kind not in BACKENDS:
        raise UserError(f"torch.distributed has no backend for {kind}: use only one process")
    own = BACKENDS[kind]
    if asked in ("nccl", own):
        return own
    if asked == "gloo" and kind == "cuda":
        return asked
    raise UserError(f"--dist_backend {asked}: {kind} uses {own}; remove the option")


def compiles_every_shape(kind: str) -> bool:
    """Return whether the device compiles every new batch shape, so that a few fixed shapes are faster."""
    return kind == "npu"


def has_float64(device: torch.device) -> bool:
    """Return whether the device has float64 (NPU and MPS do not)."""
    return device.type in ("cpu", "cuda")


def has_complex(device: torch.device) -> bool:
    """Return whether the device supports complex numbers. On NPUs few operators do."""
    return device.type != "npu"


def search_device(device: torch.device) -> torch.device:
    """Return the device for the scores of a search, which need float64, if the model is on `device`."""
    return device if has_float64(device) else torch.device("cpu")


def has_fused_optimizers(device: torch.device) -> bool:
    """Return whether torch has fused optimizers for this device."""
    return device.type in ("cpu", "cuda", "npu")


def describe(device: torch.device) -> str:
    """Return a name for the log."""
    if device.type == "cpu":
        return f"cpu ({torch.get_num_threads()} threads)"
    module = torch.get_device_module(device)
    name = getattr(module, "get_device_name", lambda _: "unknown")(device)
    return f"{device} ({name})"


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all work. Use it only for measuring time."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


@functools.cache
def _load_other_backends() -> None:
    """Load what torch loads by itself at import unless TORCH_DEVICE_BACKEND_AUTOLOAD is 0, as it is in Tympan."""
    for entry in importlib.metadata.entry_points(group="torch.backends"):
        if entry.name != "torch_npu" and os.environ.get(_AUTOLOAD) == "0":
            try:
                entry.load()()
            except Exception as error:  # a package may raise anything while it is imported
                logging.warning("the torch backend %s can't be loaded: %s", entry.name, error)


def _warn_of_ascend() -> None:
    """Once per command: the processes that it starts inherit the mark."""
    if _WARNED in os.environ or not ascend.is_installed():
        return
    problem = ascend.find_problem()
    if problem is not None:
        os.environ[_WARNED] = "1"
        logging.warning("Ascend cards can't be used, this run uses the CPU: %s", problem)


def _visibility(kind: str) -> str:
    return {"cuda": "CUDA_VISIBLE_DEVICES", "npu": "ASCEND_RT_VISIBLE_DEVICES"}.get(kind, "the environment")
