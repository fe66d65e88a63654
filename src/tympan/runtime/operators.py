"""Which of torch's operators run, and with which shapes: what a device must have kernels for, and compiles.

with OperatorTrace() as trace:
    model(x)
trace.operators()
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch._C import DispatchKey
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

HasKernel = Callable[[str], bool]
"""Whether a device has a kernel for an operator, by its name with overload: `aten::add.Tensor`."""

SYNCHRONIZING = frozenset({"aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero", "aten::equal"})
"""Operators after which the host waits for the device."""


@dataclass(frozen=True, order=True)
class Signature:
    """An operator with the shapes and types of its tensors. Numbers among the arguments don't count."""

    operator: str
    tensors: tuple[tuple[tuple[int, ...], str], ...]

    def __str__(self) -> str:
        return f"{self.operator}({', '.join(f'{dtype}{list(shape)}' for shape, dtype in self.tensors)})"


class OperatorTrace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operators that run while it is entered.

    `has_kernel`: an operator for which it is False and which torch composes of others is counted as those others.
    `device_type`: count only operators with a tensor on such a device.
    """

    def __init__(self, *, has_kernel: HasKernel | None = None, device_type: str | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[Signature] = Counter()
        self._has_kernel = has_kernel
        self._device_type = device_type

    def __torch_dispatch__(
        self, function: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._has_kernel is not None and not self._has_kernel(name_of(function)):
            with self:
                result = _composed(function, args, kwargs)
            if result is not NotImplemented:
                return result
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if self._device_type is None or any(tensor.device.type == self._device_type for tensor in tensors):
            self.counts[signature_of(name_of(function), tensors)] += 1
        return function(*args, **kwargs)

    def operators(self) -> set[str]:
        """Names with overload, as in `aten::add.Tensor`."""
        return {signature.operator for signature in self.counts}

    def signatures(self) -> set[Signature]:
        return set(self.counts)

    def synchronizations(self) -> int:
        """How often the host waited for a value of the device."""
        return sum(number for item, number in self.counts.items() if item.operator.partition(".")[0] in SYNCHRONIZING)


def signature_of(operator: str, tensors: list[Tensor]) -> Signature:
    shapes = ((tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")) for tensor in tensors)
    return Signature(operator, tuple(shapes))


def name_of(function: OpOverload) -> str:
    """The name with overload: `aten::add.Tensor`."""
    return str(function.name())  # type: ignore[no-untyped-call]


def is_view(function: OpOverload) -> bool:
    """Whether an operator only describes the same memory in another way, so that a device has nothing to compute."""
    return function.is_view or name_of(function) in ("aten::_unsafe_view", "aten::_reshape_alias")


def _composed(function: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run torch's own composition of other operators, NotImplemented if there is none."""
    if function.namespace != "aten":
        return NotImplemented
    if function.has_kernel_for_dispatch_key(DispatchKey.CompositeImplicitAutograd):
        return function.decompose(*args, **kwargs)
    for key in (DispatchKey.CompositeExplicitAutograd, DispatchKey.CompositeExplicitAutogradNonFunctional):
        if function.has_kernel_for_dispatch_key(key) and not is_view(function):
            return function._op_dk(key, *args, **kwargs)
    return NotImplemented
