"""Empty libraries in place of CANN's, so that the real torch_npu can be imported on a machine without cards.

Their functions are the undefined symbols of the wheel's own libraries. All of them fail, except that the number of
devices is 0.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Collection
from pathlib import Path

import torch

SYSTEM = ("libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "libpthread.so.0", "libdl.so.2", "librt.so.1")
ANSWERS = {
    "aclInit": "int aclInit(const char *path) { return 0; }",
    "aclFinalize": "int aclFinalize(void) { return 0; }",
    "aclrtGetDeviceCount": "int aclrtGetDeviceCount(unsigned *count) { *count = 0; return 0; }",
    "aclrtGetSocName": 'const char *aclrtGetSocName(void) { return "Ascend910B"; }',
}
FAILS = "long {name}(void) {{ return 500000; }}"


def missing_tools() -> list[str]:
    return [tool for tool in ("gcc", "nm", "readelf") if shutil.which(tool) is None]


def build_stubs(package: Path, directory: Path, *, without: Collection[str] = ()) -> Path:
    """Libraries for the torch_npu in `package`, without some of the functions."""
    directory.mkdir(parents=True)
    own = [*package.glob("lib/*.so"), *package.glob("_C*.so")]
    names = sorted(_undefined(own) - set(without))
    source = "\n".join(ANSWERS.get(name, FAILS.format(name=name)) for name in names)
    for library in sorted(_needed(own) - _provided(own) - set(SYSTEM)):
        # One library holds all functions: the loader looks for them in every one.
        text = source if library == "libascendcl.so" else ""
        command = ["gcc", "-shared", "-fPIC", "-w", "-x", "c", "-", "-o", str(directory / library)]
        subprocess.run(command, input=text, text=True, check=True, timeout=100)
    return directory


def _undefined(own: list[Path]) -> set[str]:
    """C functions that neither torch nor the system has."""
    torch_libraries = list(Path(torch.__file__).parent.glob("lib/*.so*"))
    wanted = set().union(*(_symbols(path, "--undefined-only") for path in own))
    known = set().union(*(_symbols(path, "--defined-only") for path in [*own, *torch_libraries]))
    return {name for name in wanted - known if re.match(r"(acl|Hccl|rt[A-Z]|Msprof|_ZN3atb)", name)}


def _symbols(path: Path, kind: str) -> set[str]:
    done = subprocess.run(["nm", "-D", kind, str(path)], capture_output=True, text=True, check=True, timeout=100)
    return {line.split()[-1].partition("@")[0] for line in done.stdout.splitlines() if line.split()}


def _needed(own: list[Path]) -> set[str]:
    done = subprocess.run(["readelf", "-d", *map(str, own)], capture_output=True, text=True, check=True, timeout=100)
    return set(re.findall(r"\(NEEDED\).*\[(\S+)\]", done.stdout))


def _provided(own: list[Path]) -> set[str]:
    torch_libraries = {path.name for path in Path(torch.__file__).parent.glob("lib/*.so*")}
    return {path.name for path in own} | torch_libraries | {"libtorch_python.so", "ld-linux-x86-64.so.2"}
