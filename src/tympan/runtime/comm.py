"""Communication between the processes of a run.

The training loop uses the interface `Comm`: `Solo` implements it for one process, `Distributed` for many.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from typing import Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore

from tympan.runtime.ports import require_free_port
from tympan.runtime.watchdog import Watchdog

T = TypeVar("T")


class Comm(Protocol):
    """The processes that train one model together."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of this tensor over all processes, without gradient. The argument is not changed."""

    def any(self, flag: bool) -> bool:
        """Return whether the flag is true in any process. Never waits for an accelerator."""

    def gather(self, items: Sequence[T]) -> list[T]:
        """Return the items (plain Python objects) of all processes, in the order of ranks."""

    def barrier(self) -> None:
        """Wait for all processes."""

    def close(self) -> None:
        """Leave the process group."""


class Solo:
    """A run with one process."""

    rank = 0
    size = 1

    def sum(self, tensor: Tensor) -> Tensor:
        return tensor.detach().clone()

    def any(self, flag: bool) -> bool:
        return flag

    def gather(self, items: Sequence[T]) -> list[T]:
        return list(items)

    def barrier(self) -> None:
        return None

    def close(self) -> None:
        return None


class Distributed:
    """A run with many processes, using torch.distributed.

    Flags and Python objects are exchanged with gloo on the CPU, even if tensors use nccl or hccl, so that the host
    never waits for the device.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        backend: str,
        init_method: str = "env://",
        rank: int | None = None,
        size: int | None = None,
        timeout_s: float = 1800.0,
    ) -> None:
        rank = int(os.environ["RANK"]) if rank is None else rank
        size = int(os.environ["WORLD_SIZE"]) if size is None else size
        backends = "gloo" if backend == "gloo" else f"cpu:gloo,{device.type}:{backend}"
        store = _store_of_this_attempt(size) if init_method == "env://" else None
        if rank == 0 and init_method.startswith("tcp://"):
            require_free_port(int(init_method.rpartition(":")[2]))
        dist.init_process_group(
            backends,
            init_method=init_method if store is None else None,
            store=store,
            rank=rank,
            world_size=size,
            # Longer than the limit of the watchdog, whose report is more detailed than a timeout error
            timeout=datetime.timedelta(seconds=2 * timeout_s + 60),
        )
        self.device = device
        shared = dist.distributed_c10d._get_default_store()
        self._watchdog = Watchdog(shared, rank=dist.get_rank(), size=dist.get_world_size(), limit_s=timeout_s)

    @property
    def rank(self) -> int:
        return dist.get_rank()

    @property
    def size(self) -> int:
        return dist.get_world_size()

    def sum(self, tensor: Tensor) -> Tensor:
        total = tensor.detach().clone()
        with self._watchdog.waiting("sum"):
            dist.all_reduce(total)
        return total

    def any(self, flag: bool) -> bool:
        said = torch.tensor(int(flag))
        with self._watchdog.waiting("any"):
            dist.all_reduce(said, op=dist.ReduceOp.MAX)
        return bool(said.item())

    def gather(self, items: Sequence[T]) -> list[T]:
        lists: list[list[T]] = [[] for _ in range(self.size)]
        with self._watchdog.waiting("gather"):
            dist.all_gather_object(lists, list(items))
        return [item for part in lists for item in part]

    def barrier(self) -> None:
        self.any(False)

    def close(self) -> None:
        self._watchdog.close()
        dist.destroy_process_group()


def _store_of_this_attempt(size: int) -> PrefixStore | None:
    """Return torchrun's store with a prefix: after a restart it still has the addresses of the previous workers."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return PrefixStore(f"tympan-attempt-{attempt}", TCPStore(address, port, size, is_master=False))
