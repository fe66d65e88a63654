"""Reads a torch-npu wheel without importing it: kernels from the library's strings, names from the Python sources."""

from __future__ import annotations

import ast
import functools
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("TYMPAN_ASCEND_CACHE", ROOT / "build" / "ascend"))
LIBRARY = "torch_npu/lib/libtorch_npu.so"

# Kernels are anonymous functions `wrapper_NPU_<overload>_<operator>`. A mangled name states its length in front.
_KERNEL = re.compile(rb"_GLOBAL__N_1(\d+)(wrapper_(?:NPU|SparseNPU|AutogradNPU)_\w+)")
_CAUTION = re.compile(rb"The operator ((?:aten::)?\w+(?:\.\w+)?)[^\0]{0,400}?fallback")

_RENAMED = {
    "aten::_softmax_backward_data": "_softmax_backward_data",
    "aten::_softmax_backward_data.out": "_softmax_backward_data_out_out",
}
"""Operators whose wrappers have another name."""


class Wheel:
    """An opened wheel."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._archive = zipfile.ZipFile(path)

    @functools.cached_property
    def library(self) -> bytes:
        return self._archive.read(LIBRARY)

    @functools.cached_property
    def kernels(self) -> frozenset[str]:
        """`<overload>_<operator>` of every kernel for the device."""
        found = set()
        for match in _KERNEL.finditer(self.library):
            name = match.group(2)[: int(match.group(1))].decode()
            if name.startswith("wrapper_NPU_"):
                found.add(name.removeprefix("wrapper_NPU_"))
        return frozenset(found)

    def has_kernel(self, operator: str) -> bool:
        """Whether the device has a kernel of its own for `aten::add.Tensor`, or one from which torch makes it."""
        name, _, overload = operator.removeprefix("aten::").partition(".")
        if operator in _RENAMED:
            return _RENAMED[operator] in self.kernels
        if f"{overload}_{name}" in self.kernels or f"{overload}_{name}_out" in self.kernels:
            return True
        # Of a structured operator, torch makes the variants without `out` from the one with it.
        is_structured = operator.startswith("aten::") and torch._C._dispatch_has_kernel_for_dispatch_key(
            operator, "CompositeExplicitAutogradNonFunctional"
        )
        out = f"{overload}_out" if overload else "out"
        return is_structured and f"{out}_{name.removesuffix('_')}_out" in self.kernels

    @functools.cached_property
    def cautions(self) -> frozenset[str]:
        """Operators whose kernels run on the host under conditions, according to their own messages."""
        return frozenset(match.decode().removeprefix("aten::") for match in _CAUTION.findall(self.library))

    @functools.cached_property
    def needed_libraries(self) -> frozenset[str]:
        """Names of shared libraries in the string table of the library."""
        return frozenset(name.decode() for name in re.findall(rb"\0(lib[\w+-]+\.so[\d.]*)(?=\0)", self.library))

    def source(self, module: str) -> ast.Module:
        """The parsed source of `torch_npu.npu`, package or module."""
        stem = module.replace(".", "/")
        names = set(self._archive.namelist())
        path = next(name for name in (f"{stem}/__init__.py", f"{stem}.py") if name in names)
        return ast.parse(self._archive.read(path).decode())

    def names_of(self, module: str) -> set[str]:
        """Names that a module defines, imports or assigns at its top level."""
        found: set[str] = set()
        for node in ast.walk(self.source(module)):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.ImportFrom) and node.level == 1 and node.names[0].name == "*":
                found |= self.names_of(f"{module}.{node.module}")
            elif isinstance(node, ast.Import | ast.ImportFrom):
                found |= {alias.asname or alias.name for alias in node.names}
            elif isinstance(node, ast.Assign):
                found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        return found

    def text(self, path: str) -> str:
        return self._archive.read(path).decode()

    def metadata(self) -> str:
        name = next(name for name in self._archive.namelist() if name.endswith(".dist-info/METADATA"))
        return self.text(name)


def find_wheel() -> Wheel:
    """The wheel for this torch, from the cache or PyPI. RuntimeError with the reason if it can't be had."""
    version = torch.__version__.partition("+")[0]
    CACHE.mkdir(parents=True, exist_ok=True)
    if not (found := sorted(CACHE.glob(f"torch_npu-{version}*.whl"))):
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            f"torch-npu=={version}.*",
            "--no-deps",
            "--dest",
            str(CACHE),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        found = sorted(CACHE.glob(f"torch_npu-{version}*.whl"))
        if not found:
            lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
            raise RuntimeError(f"no torch-npu wheel for torch {version}: {lines[-1]}")
    return Wheel(found[-1])
