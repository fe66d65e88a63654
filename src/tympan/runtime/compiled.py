"""Functions compiled with numba, for recursions in which each value depends on the last."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def compiled(*, fastmath: set[str] | bool = False) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """numba.njit, with the compiled code cached on disk if a cache directory is writable."""
    numba = _import_numba()

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        fast: Callable[P, R]
        try:
            fast = numba.njit(cache=True, fastmath=fastmath)(function)
            _compile_again_if_damaged(fast)
        except RuntimeError:  # a container without one writable directory
            fast = numba.njit(fastmath=fastmath)(function)
        return fast

    return decorate


def _import_numba() -> Any:
    """Import numba without its file of settings in the working directory.

    `.numba_config.yaml` may name the directory of compiled functions, which numba unpickles: that would run code.
    Numba does not read the file if it can't import yaml, and has no other option for this.
    """
    if "numba" in sys.modules:
        return sys.modules["numba"]
    known = sys.modules.get("yaml")
    sys.modules["yaml"] = None  # type: ignore[assignment]
    try:
        import warnings

        # Numba warns about the file that it does not read, also later, when it compiles.
        warnings.filterwarnings("ignore", message="A Numba config file is found")
        return importlib.import_module("numba")
    finally:
        del sys.modules["yaml"]
        if known is not None:
            sys.modules["yaml"] = known


def _compile_again_if_damaged(function: Any) -> None:
    """Numba writes its files without flushing them to disk, and raises what unpickling a damaged one raises."""
    cache = function._cache  # there is no public name
    load = cache.load_overload

    def load_or_none(*arguments: Any) -> Any:
        try:
            return load(*arguments)
        except Exception as error:
            logging.warning("%s: damaged (%s); compiling again", function.stats.cache_path, error)
            cache.flush()
            return None

    cache.load_overload = load_or_none
