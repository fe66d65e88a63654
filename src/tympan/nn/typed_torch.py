"""Typed wrappers for untyped torch functions; they do nothing else.

`torch.split`, `torch.unflatten` and `torch.unique` have types; the methods of the same names do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, overload

import torch
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)

if TYPE_CHECKING:

    class ModuleList(nn.ModuleList, Generic[M]):
        """torch's ModuleList of modules of one type."""

        def __init__(self, modules: Iterable[M] | None = None) -> None: ...

        @overload
        def __getitem__(self, idx: slice) -> ModuleList[M]: ...

        @overload
        def __getitem__(self, idx: int) -> M: ...

        def __getitem__(self, idx: int | slice) -> M | ModuleList[M]: ...

        def __iter__(self) -> Iterator[M]: ...

else:
    ModuleList = nn.ModuleList


class Context(Protocol):
    """The `ctx` of an autograd function. A Protocol per function declares its other attributes."""

    needs_input_grad: tuple[bool, ...]

    @property
    def saved_tensors(self) -> tuple[Tensor, ...]: ...

    def save_for_backward(self, *tensors: Tensor) -> None: ...


def run_function(function: type[torch.autograd.Function], *args: object) -> Tensor:
    """`function.apply` of a function with one result."""
    result: Tensor = function.apply(*args)  # type: ignore[no-untyped-call]
    return result


class LoadHook(Protocol):
    """Changes a state dict in place before a module loads the entries that begin with the prefix."""

    def __call__(self, module: nn.Module, state: dict[str, Tensor], prefix: str, /, *rest: object) -> None: ...


def before_loading(module: nn.Module, hook: LoadHook) -> None:
    """Call `hook` whenever weights are loaded into the module."""
    module.register_load_state_dict_pre_hook(hook)  # type: ignore[no-untyped-call]
