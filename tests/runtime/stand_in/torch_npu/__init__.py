"""A fake torch_npu: a device named npu, registered with torch's mechanism for out-of-tree devices.

Its tensors are in ordinary memory and its kernels run on the CPU. Tests with it show which calls reach the device, but
nothing about a real Ascend device. `hccl` is gloo under another name.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

CARDS = int(os.environ.get("STAND_IN_CARDS", "2"))
STATE = {"current": 0}


class Module:
    """torch.npu"""

    @staticmethod
    def is_available() -> bool:
        return CARDS > 0

    @staticmethod
    def device_count() -> int:
        return CARDS

    @staticmethod
    def current_device() -> int:
        return STATE["current"]

    @staticmethod
    def set_device(index: int) -> None:
        STATE["current"] = int(index)

    @staticmethod
    def get_device_name(device: Any = None) -> str:
        return "stand-in"

    @staticmethod
    def is_bf16_supported() -> bool:
        return True

    @staticmethod
    def get_amp_supported_dtype() -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    @staticmethod
    def _is_in_bad_fork() -> bool:
        return False

    @staticmethod
    def manual_seed_all(seed: int) -> None:
        return None

    @staticmethod
    def is_initialized() -> bool:
        return True


class Hook(torch._C._acc.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return CARDS > 0

    def has_primary_context(self, index: int) -> bool:
        return True

    def is_built(self) -> bool:
        return True

    def device_count(self) -> int:
        return CARDS

    def get_current_device(self) -> int:
        return STATE["current"]

    def set_current_device(self, index: int) -> None:
        STATE["current"] = index


class Guard(torch._C._acc.DeviceGuard):
    def type_(self) -> Any:
        return torch._C._autograd.DeviceType.PrivateUse1

    def get_device(self) -> torch.device:
        return torch.device("npu", STATE["current"])

    def set_device(self, device: torch.device) -> None:
        STATE["current"] = device.index or 0

    def exchange_device(self, device: torch.device) -> torch.device:
        before = self.get_device()
        self.set_device(device)
        return before

    def device_count(self) -> int:
        return CARDS


class NpuTensor(torch.Tensor):
    """A tensor whose device is npu and whose values are kept in an ordinary tensor."""

    raw: torch.Tensor

    @staticmethod
    def __new__(cls, raw: torch.Tensor, device: torch.device | None = None) -> NpuTensor:
        # torch can't make a view of a wrapper that is an inference tensor
        with torch.inference_mode(False):
            made = torch.Tensor._make_wrapper_subclass(
                cls, raw.size(), strides=raw.stride(), storage_offset=raw.storage_offset(), dtype=raw.dtype,
                device=device or torch.device("npu", STATE["current"]),
            )  # fmt: skip
        made.raw = raw
        return made

    def tolist(self) -> Any:
        return self.raw.tolist()

    @classmethod
    def __torch_dispatch__(cls, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        target = kwargs.get("device")
        leaves_device = target is not None and torch.device(target).type == "cpu"
        if target is not None:
            kwargs["device"] = torch.device("cpu")
        plain_args, plain_kwargs = pytree.tree_map(_inner, (args, kwargs))
        result = operator(*plain_args, **plain_kwargs)
        if operator.__name__.partition(".")[0].endswith("_") and isinstance(args[0], torch.Tensor):
            return args[0]
        return result if leaves_device else pytree.tree_map(_outer, result)


def _inner(value: Any) -> Any:
    return value.raw if isinstance(value, NpuTensor) else value


def _outer(value: Any) -> Any:
    return NpuTensor(value) if type(value) is torch.Tensor else value


def _empty(size: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None,
           memory_format: Any = None) -> NpuTensor:  # fmt: skip
    return NpuTensor(torch.empty(size, dtype=dtype))


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, layout: Any = None, device: Any = None,
                   pin_memory: Any = None) -> NpuTensor:  # fmt: skip
    return NpuTensor(torch.empty_strided(size, stride, dtype=dtype))


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    _inner(target).copy_(_inner(source))
    return target


def _hccl(options: Any, extra: Any = None) -> Any:
    raise RuntimeError("the fake device has no collective operations")


_setup_privateuseone_for_python_backend("npu", Module(), Hook(), Guard())
_library = torch.library.Library("aten", "IMPL")
_library.impl("empty.memory_format", _empty, "PrivateUse1")
_library.impl("empty_strided", _empty_strided, "PrivateUse1")
_library.impl("_copy_from", _copy_from, "PrivateUse1")
dist.Backend.register_backend("hccl", _hccl, devices=["npu"])


def _in_half(function: Any) -> Any:
    """As autocast does for products: the tensors in its type, then the operator itself."""

    def run(*args: Any, **kwargs: Any) -> Any:
        kind = torch.get_autocast_dtype("npu")

        def cast(value: Any) -> Any:
            is_wide = isinstance(value, torch.Tensor) and value.dtype == torch.float32
            return value.to(kind) if is_wide else value

        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)):
            args, kwargs = pytree.tree_map(cast, (args, kwargs))
            return function(*args, **kwargs)

    return run


for _name in ("linear", "matmul", "bmm", "mm", "addmm", "baddbmm", "conv1d", "conv2d", "scaled_dot_product_attention"):
    _library.impl(_name, _in_half(getattr(torch.ops.aten, _name).default), "AutocastPrivateUse1")
_everything = torch.library.Library("_", "IMPL")
_everything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
# Its memory is that of the host, so there is nothing to pin
torch.Tensor.pin_memory = lambda self, device=None: self  # type: ignore[method-assign]
