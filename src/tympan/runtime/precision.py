"""The precision of a run: --train_dtype, --use_amp and --loss_scale, with the meaning of apex, using torch.amp.

| train_dtype | weights | matrix products | updates | loss scale |
|---|---|---|---|---|
| float32, O0 | float32 | float32 | float32 | 1 |
| float64 | float64 | float64 | float64 | 1 |
| use_amp | float32 | autocast bfloat16, or float16 if the device has no bfloat16 | float32 | dynamic for float16 |
| O1 | float32 | autocast float16 | float32 | dynamic |
| O2 | float16, normalization float32 | float16 | float32 master weights | dynamic |
| O3 | float16 | float16 | float32 arithmetic, rounded to float16 weights | 1 |
| float16 | as O3 | float16 | as O3 | dynamic |
| bfloat16 | bfloat16 | bfloat16 | as O3 | 1 |

Models compute features, CTC and batch statistics in float32, because half precision is not accurate enough. The
optimizer state is always float32, because Adam's epsilon becomes 0 in float16.
"""

from __future__ import annotations

import functools
import logging
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from tympan.errors import UserError
from tympan.runtime.child import code_command
from tympan.runtime.cpu import has_fast_bfloat16

NAMES = ("float16", "bfloat16", "float32", "float64", "O0", "O1", "O2", "O3")


@runtime_checkable
class ComputesFeatures(Protocol):
    """A model with parts that compute features from the audio, without autocast and in at least float32."""

    def feature_parts(self) -> Sequence[nn.Module]: ...


@dataclass(frozen=True)
class Precision:
    """The dtypes and the loss scale of a run."""

    name: str
    device_type: str
    weights: torch.dtype = torch.float32
    autocast: torch.dtype | None = None
    updates: Literal["plain", "master", "rounded"] = "plain"
    norms_in_float32: bool = False
    loss_scale: float | Literal["dynamic"] | None = None

    def forward_context(self) -> AbstractContextManager[Any]:
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(self.device_type, dtype=self.autocast)

    def prepare(self, model: nn.Module) -> None:
        """Convert the weights of the model in place, except those that compute features.

        Buffers (statistics, windows) are converted only for float64.
        """
        if self.weights == torch.float64:
            model.double()
            return
        if self.weights in (torch.float16, torch.bfloat16):
            kept = [module for module in model.modules() if self.norms_in_float32 and _is_norm(module)]
            kept += model.feature_parts() if isinstance(model, ComputesFeatures) else []
            untouched = {id(parameter) for module in kept for parameter in module.parameters()}
            for parameter in model.parameters():
                if id(parameter) not in untouched:
                    parameter.data = parameter.data.to(self.weights)

    def inputs(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Convert the batch for the model. Only float64 needs this; the model casts to all other dtypes itself."""
        if self.weights != torch.float64:
            return dict(tensors)
        return {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}


def choose_precision(
    train_dtype: str, *, device_type: str, use_amp: bool = False, loss_scale: float | None = None
) -> Precision:
    """Return the precision for these options. The UserError for an unsupported device names an alternative."""
    if train_dtype not in NAMES:
        raise UserError(f"--train_dtype {train_dtype}: must be one of {', '.join(NAMES)}")
    if use_amp and train_dtype not in ("float32", "O0"):
        raise UserError(
            f"--use_amp true can't be used with --train_dtype {train_dtype}: use_amp needs float32 weights. "
            "Remove one of the two options"
        )
    if train_dtype == "float64" and device_type in ("mps", "npu"):
        raise UserError(f"--train_dtype float64: {device_type} has no float64. Use float32, or --ngpu 0")
    scale: float | Literal["dynamic"] = "dynamic" if loss_scale is None else loss_scale
    fixed = loss_scale
    half = torch.float16
    if use_amp:
        kind = torch.bfloat16 if _has_bfloat16(device_type) else half
        chosen = Precision("amp", device_type, autocast=kind, loss_scale=scale if kind == half else fixed)
    elif train_dtype in ("float32", "O0"):
        chosen = Precision(train_dtype, device_type, loss_scale=fixed)
    elif train_dtype == "float64":
        chosen = Precision(train_dtype, device_type, weights=torch.float64, loss_scale=fixed)
    elif train_dtype == "O1":
        chosen = Precision(train_dtype, device_type, autocast=half, loss_scale=scale)
    elif train_dtype == "O2":
        chosen = Precision(
            train_dtype,
            device_type,
            weights=half,
            autocast=half,
            updates="master",
            norms_in_float32=True,
            loss_scale=scale,
        )
    else:
        kind = torch.bfloat16 if train_dtype == "bfloat16" else half
        scaled = scale if train_dtype == "float16" else fixed
        chosen = Precision(train_dtype, device_type, weights=kind, autocast=kind, updates="rounded", loss_scale=scaled)
    _try(chosen)
    return chosen


class MasterWeights:
    """float32 copies of half-precision weights, which the optimizer updates.

    "master" keeps the copies between updates (O2). "rounded" makes them again from the weights before each update, so
    that only the weights are stored (O3).
    """

    def __init__(self, parameters: Iterable[nn.Parameter], *, updates: Literal["plain", "master", "rounded"]) -> None:
        self.weights = list(parameters)
        self.keeps = updates == "master"
        self.masters = [_widened(weight) if updates != "plain" else weight for weight in self.weights]
        self._pairs = [(w, m) for w, m in zip(self.weights, self.masters, strict=True) if w is not m]

    def take_gradients(self) -> None:
        """Move the gradients of the weights to the float32 copies."""
        for weight, master in self._pairs:
            master.grad = None if weight.grad is None else weight.grad.to(master.dtype)
            weight.grad = None
            if not self.keeps:
                master.data.copy_(weight.data)

    def write_back(self) -> None:
        """Round the updated float32 copies into the weights."""
        for weight, master in self._pairs:
            weight.data.copy_(master.data)

    def state_dict(self) -> list[Tensor]:
        return [master.data for _, master in self._pairs] if self.keeps else []

    def load_state_dict(self, state: list[Tensor]) -> None:
        for (weight, master), saved in zip(self._pairs, state or [w.data for w, _ in self._pairs], strict=True):
            master.data.copy_(saved)
            weight.data.copy_(master.data)


class Scaler:
    """The loss scale: none, fixed, or torch's dynamic scale, with the same interface."""

    def __init__(self, precision: Precision) -> None:
        self.fixed = precision.loss_scale if isinstance(precision.loss_scale, float | int) else None
        enabled = precision.loss_scale is not None
        start = float(self.fixed) if self.fixed is not None else 65536.0
        self._torch = torch.amp.GradScaler(precision.device_type, init_scale=start, enabled=enabled)

    def scale(self, loss: Tensor) -> Tensor:
        return self._torch.scale(loss)

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        self._torch.unscale_(optimizer)

    def update(self) -> None:
        """Call this after each update, skipped or not. Only a dynamic scale changes."""
        if self._torch.is_enabled():
            self._torch.update(float(self.fixed) if self.fixed is not None else None)

    @property
    def value(self) -> float:
        # Reading torch's value makes the host wait for the device
        return float(self.fixed) if self.fixed is not None else float(self._torch.get_scale())

    @property
    def is_enabled(self) -> bool:
        return bool(self._torch.is_enabled())

    @property
    def is_dynamic(self) -> bool:
        return self._torch.is_enabled() and self.fixed is None

    def state_dict(self) -> dict[str, Any]:
        return self._torch.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._torch.is_enabled() and state:
            self._torch.load_state_dict(state)


def _widened(weight: nn.Parameter) -> nn.Parameter:
    if weight.dtype not in (torch.float16, torch.bfloat16):
        return weight
    return nn.Parameter(weight.detach().float(), requires_grad=weight.requires_grad)


def _is_norm(module: nn.Module) -> bool:
    """Return whether this is a normalization layer of torch or a layer with running statistics."""
    return isinstance(module, nn.LayerNorm | nn.GroupNorm | nn.RMSNorm) or hasattr(module, "running_mean")


def _name(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")


def _has_bfloat16(device_type: str) -> bool:
    if device_type == "cpu":
        return True
    supported = getattr(torch.get_device_module(device_type), "is_bf16_supported", None)
    return bool(supported()) if supported is not None else False


def _try(precision: Precision) -> None:
    """Test matrix products in the chosen dtype before anything is built."""
    kind = precision.autocast or precision.weights
    if precision.device_type == "cpu" and kind in (torch.float16, torch.bfloat16):
        _try_on_cpu(precision.name, kind)
        return
    try:
        a = torch.ones(2, 8, 8, dtype=kind, device=precision.device_type, requires_grad=True)
        with precision.forward_context():
            torch.autograd.backward(nn.functional.layer_norm(a @ a, (8,)).float().sum())
    except (RuntimeError, TypeError) as error:
        raise UserError(
            f"--train_dtype {precision.name}: {precision.device_type} can't compute in {_name(kind)} "
            f"({str(error).splitlines()[0]}). Use --train_dtype bfloat16 or float32"
        ) from error


def _try_on_cpu(name: str, kind: torch.dtype) -> None:
    """Test in a separate process: a CPU that reports AMX but does not allow its use kills the process."""
    if _survives(_name(kind), onednn=True):
        return
    if not _survives(_name(kind), onednn=False):
        raise UserError(f"--train_dtype {name}: this CPU can't compute in {_name(kind)}. Use --train_dtype float32")
    logging.warning(
        "matrix products of oneDNN in %s crash on this CPU, so oneDNN is disabled for this run, which is slow; "
        "the environment variable ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 may be faster",
        _name(kind),
    )
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]


def trains_fast_in_bfloat16() -> bool:
    """Return whether this CPU has bfloat16 instructions and allows their use."""
    return has_fast_bfloat16() and _survives("bfloat16", onednn=True)


@functools.cache
def _survives(kind: str, *, onednn: bool) -> bool:
    trial = (
        f"import torch; torch.backends.mkldnn.enabled = {onednn}\n"
        f"x, w = (torch.ones(64, 64, dtype=torch.{kind}, requires_grad=True) for _ in range(2))\n"
        f"c = torch.ones(16, 64, 3, dtype=torch.{kind})\n"
        "y = torch.nn.functional.conv1d(torch.nn.functional.linear(x, w).unsqueeze(0), c)\n"
        "torch.nn.functional.layer_norm(y, y.shape[-1:]).float().sum().backward()\n"
    )
    return subprocess.run(code_command(trial), capture_output=True).returncode == 0
