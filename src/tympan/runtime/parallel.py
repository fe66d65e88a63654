"""Distribute a model over processes with DDP (averaged gradients) or FSDP (sharded weights), and gather its state.

With one process, the model is used unchanged.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from tympan.errors import UserError
from tympan.runtime.comm import Comm

COMM_HOOKS = ("fp16", "bf16", "powersgd")


@dataclass(frozen=True)
class ParallelOptions:
    """How the processes share a model."""

    fsdp: bool = False
    sync_batchnorm: bool = True
    unused_parameters: bool = False
    gradient_as_bucket_view: bool = True
    comm_hook: str | None = None


class Parallel:
    """The model as the training loop calls it (`model`) and as it is saved (`module`)."""

    def __init__(
        self,
        module: nn.Module,
        *,
        comm: Comm,
        device: torch.device,
        options: ParallelOptions,
        compiled: bool = False,
    ) -> None:
        self.module = module
        self._norms = _SharedNorms(module) if comm.size > 1 and options.sync_batchnorm else None
        self.model = module
        self._replica: DistributedDataParallel | None = None
        self.is_sharded = options.fsdp
        if options.fsdp:
            self.model = _shard(module, device)
        elif comm.size > 1:
            self._replica = _replicate(module, device, options)
            self.model = self._replica
        if compiled:
            # One graph per shape: with dynamic shapes, the CPU compiler of torch 2.13 fails on these models
            compiled_model = torch.compile(self.model, dynamic=False)
            assert isinstance(compiled_model, nn.Module)
            self.model = compiled_model

    @contextmanager
    def sync_gradients(self, now: bool) -> Iterator[None]:
        """Context in which backward exchanges gradients only if `now` is true: once per group of batches."""
        if self._replica is not None and not now:
            with self._replica.no_sync():
                yield
            return
        if self.is_sharded:
            from torch.distributed.fsdp import FSDPModule

            assert isinstance(self.module, FSDPModule)
            self.module.set_requires_gradient_sync(now)
        yield

    @contextmanager
    def holding(self, something: bool) -> Iterator[None]:
        """Context in which this rank contributes to normalization statistics only if it has utterances."""
        if self._norms is not None:
            self._norms.weight = 1.0 if something else 0.0
        yield

    def clip_gradients(self, parameters: Sequence[Tensor], *, max_norm: float, norm_type: float) -> Tensor:
        """Clip in place. Returns the norm before clipping, which is the same on every rank."""
        norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm=max_norm, norm_type=norm_type)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def full_model_state(self) -> dict[str, Tensor]:
        """Return the complete weights on the CPU. Must be called on every rank."""
        return {name: _whole(tensor) for name, tensor in self.module.state_dict().items()}

    def load_model_state(self, state: dict[str, Tensor]) -> None:
        own = self.module.state_dict()
        self.module.load_state_dict({name: _like(state[name], tensor) for name, tensor in own.items()})

    def full_optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return the complete optimizer state on the CPU. Must be called on every rank."""
        return {name: _map_tensors(item, _whole) for name, item in optimizer.state_dict().items()}

    def load_optimizer_state(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        if self.is_sharded:
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            numbers = [n for group in state["param_groups"] for n in group["params"]]
            places = dict(zip(numbers, parameters, strict=True))
            held = {n: {key: _sharded(v, places[n]) for key, v in s.items()} for n, s in state["state"].items()}
            state = {**state, "state": held}
        optimizer.load_state_dict(state)


@runtime_checkable
class SharesStatistics(Protocol):
    """A normalization layer whose running statistics can be computed over all ranks."""

    reduce: Callable[[Tensor], Tensor] | None
    """A differentiable sum over ranks. None uses the statistics of this process only."""
    is_updating: bool


class _SharedNorms:
    """Sums normalization statistics over ranks, with gradient. A rank without utterances adds zero."""

    def __init__(self, module: nn.Module) -> None:
        self.weight = 1.0
        for part in module.modules():
            if isinstance(part, SharesStatistics):
                part.reduce = self.reduce

    def reduce(self, tensor: Tensor) -> Tensor:
        total: Tensor = _SumOverRanks.apply(tensor * self.weight)  # type: ignore[no-untyped-call]
        return total


class _SumOverRanks(torch.autograd.Function):
    """y = sum of x over ranks. The loss of every rank depends on y, so the gradient is also summed over ranks."""

    @staticmethod
    def forward(ctx: FunctionCtx, tensor: Tensor) -> Tensor:
        total = tensor.contiguous().clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> Tensor:
        total = gradient.contiguous().clone()
        dist.all_reduce(total)
        return total


def _replicate(module: nn.Module, device: torch.device, options: ParallelOptions) -> DistributedDataParallel:
    # Synchronized running statistics are equal on all ranks. Otherwise those of rank 0 are used.
    newer = "forward_sync_buffers" in inspect.signature(DistributedDataParallel.__init__).parameters
    buffers: dict[str, Any] = {"forward_sync_buffers" if newer else "broadcast_buffers": not options.sync_batchnorm}
    model = DistributedDataParallel(
        module,
        device_ids=None if device.type == "cpu" else [device.index],
        find_unused_parameters=options.unused_parameters,
        gradient_as_bucket_view=options.gradient_as_bucket_view,
        **buffers,
    )
    if options.comm_hook is not None:
        _compress(model, options.comm_hook)
    return model


def _compress(model: DistributedDataParallel, name: str) -> None:
    """Exchange gradients in a lower precision."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    if name not in COMM_HOOKS:
        raise UserError(f"--ddp_comm_hook {name}: must be one of {', '.join(COMM_HOOKS)}")
    try:
        if name == "fp16":
            model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        elif name == "bf16":
            model.register_comm_hook(None, default_hooks.bf16_compress_hook)
        else:
            model.register_comm_hook(powerSGD_hook.PowerSGDState(None), powerSGD_hook.powerSGD_hook)
    except TypeError as error:
        raise UserError(f"--ddp_comm_hook {name}: {error}. Use fp16 on this device") from error


def _shard(module: nn.Module, device: torch.device) -> nn.Module:
    """Shard the model with torch's FSDP2: each repeated block is one group, the rest is another."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    whole = [part for part in module.modules() if isinstance(part, MayBeWhole) and part.is_never_sharded]
    inside = {inner for part in whole for inner in part.modules()}
    for part in list(module.modules()):
        if isinstance(part, nn.ModuleList) and part not in inside:
            for block in part:
                fully_shard(block, mesh=mesh)
    ignored = {parameter for part in whole for parameter in part.parameters()}
    if ignored:
        fully_shard(module, mesh=mesh, ignored_params=ignored)
    else:
        fully_shard(module, mesh=mesh)
    return module


@runtime_checkable
class MayBeWhole(Protocol):
    """A part that some processes may skip in a step, such as a frozen encoder whose output is in a cache."""

    is_never_sharded: bool
    """FSDP would wait for the processes that skip it, so every process has all of its weights."""

    def modules(self) -> Iterator[nn.Module]: ...

    def parameters(self) -> Iterator[nn.Parameter]: ...


def _whole(tensor: Tensor) -> Tensor:
    full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return full.detach().cpu().clone()


def _like(full: Tensor, own: Tensor) -> Tensor:
    if isinstance(own, DTensor):
        return distribute_tensor(full.to(own.device, own.dtype), own.device_mesh, own.placements)
    return full


def _sharded(value: object, parameter: Tensor) -> object:
    """Shard optimizer state that has the shape of its weight. Counters are not sharded."""
    if isinstance(value, Tensor) and value.shape == parameter.shape:
        return _like(value, parameter)
    return value


def _map_tensors(value: object, function: Callable[[Tensor], Tensor]) -> object:
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: _map_tensors(item, function) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_map_tensors(item, function) for item in value)
    return value
