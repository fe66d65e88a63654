"""Functions compiled with numba, for recursions in which each value depends on the last."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def compiled(*, fastmath: set[str] | bool = False) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """numba.njit, with the compiled code cached on disk if a cache directory is writable."""
    import numba

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        fast: Callable[P, R]
        try:
            fast = numba.njit(cache=True, fastmath=fastmath)(function)
        except RuntimeError:  # a container without one writable directory
            fast = numba.njit(fastmath=fastmath)(function)
        return fast

    return decorate
