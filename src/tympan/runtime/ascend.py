"""What an Ascend card needs on the host (torch-npu, CANN, driver): what is here, what is missing, and how to fix it.

Nothing here imports torch_npu except `load`: importing it without CANN fails, and with a wrong CANN may do worse.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.metadata
import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path

LIBRARIES = ("libascendcl.so", "libhccl.so")
"""Libraries of CANN that torch-npu links. The contract test compares them with the wheel."""

ROOTS = (Path("/usr/local/Ascend"), Path.home() / "Ascend")
"""Where CANN's installer puts things for root and for a user."""

DRIVER = Path("/usr/local/Ascend/driver/version.info")
DEFAULT_SET_ENV = "/usr/local/Ascend/ascend-toolkit/set_env.sh"
TABLE = "https://github.com/Ascend/pytorch#ascend-auxiliary-software"

_VERSION = re.compile(r"^\s*(?:package_)?version\s*=\s*\[?([0-9][^\]\s:]*)", re.IGNORECASE | re.MULTILINE)
_VERSION_FILES = ("version.cfg", "version.info", "compiler/version.info", "runtime/version.info")
_TORCH_SYMBOL = re.compile(r"undefined symbol: \S*(?:3c10|2at|5torch)")
_SYMBOL = re.compile(r"undefined symbol: (\w+)")
_MISSING_LIBRARY = re.compile(r"(lib[\w.+-]+\.so[\w.]*): cannot open shared object file")


@dataclass(frozen=True)
class Part:
    """One line of the report: `problem` says what is missing and what to do, None if nothing is."""

    name: str
    found: str
    problem: str | None = None

    def __str__(self) -> str:
        return self.found if self.problem is None else f"{self.found}: {self.problem}"


def is_installed() -> bool:
    """Whether torch-npu is installed, working or not."""
    return importlib.util.find_spec("torch_npu") is not None


def version() -> str | None:
    """The installed version of torch-npu; None if its metadata is missing."""
    try:
        return importlib.metadata.version("torch-npu")
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache
def load() -> str | None:
    """Import torch_npu, which makes the cards appear in torch. The problem with the remedy if that fails."""
    problem = find_problem()
    if problem is not None:
        return problem
    try:
        importlib.import_module("torch_npu")
    except Exception as error:  # a package may raise anything while it is imported
        return explain(error)
    return None


def find_problem() -> str | None:
    """A reason why torch_npu can't be imported that is known without trying; None if there is none."""
    if version() is None:
        return None
    return _version_problem() or _library_problem()


def explain(error: BaseException) -> str:
    """The cause and the remedy of a failed `import torch_npu`, in one message."""
    said = " ".join(str(error).split())
    if missing := _MISSING_LIBRARY.search(said):
        return _missing_library(missing.group(1))
    if _TORCH_SYMBOL.search(said):
        return f"{_name()} was built for another torch than {_torch_version()} ({said}): {_install_matching()}"
    if symbol := _SYMBOL.search(said):
        return f"{_cann()} does not have the function {symbol.group(1)}, which {_name()} needs: {_matching_cann()}"
    if "Two accelerators" in said:
        return (
            f"{_name()} can't be used together with the other accelerator of this torch build: "
            "install the CPU build of torch to use Ascend cards"
        )
    return f"{_name()} can't be imported ({type(error).__name__}: {said or 'no reason given'}). Check {_cann()}"


def no_card() -> str:
    """What to do if torch_npu was imported and there are no cards."""
    nodes = len(_device_nodes())
    if nodes and os.environ.get("ASCEND_RT_VISIBLE_DEVICES") == "":
        return "ASCEND_RT_VISIBLE_DEVICES is set and empty: unset it, or list the cards to use (0,1,...)"
    if nodes:
        return (
            f"torch-npu and CANN are loaded, but none of the {nodes} cards (/dev/davinci*) can be used: check "
            "'npu-smi info', ASCEND_RT_VISIBLE_DEVICES, and that your user may open the devices (group HwHiAiUser)"
        )
    return (
        "torch-npu and CANN are loaded, but there is no card (/dev/davinci*): install the driver and check "
        "'npu-smi info'; a container needs the devices of its host"
    )


def parts() -> list[Part]:
    """torch, torch-npu, CANN, driver and cards, in the order in which they depend on each other."""
    return [Part("torch", _torch_version()), _torch_npu_part(), _cann_part(), _driver_part(), _cards_part()]


def is_worth_a_report(device: str | None) -> bool:
    """Return whether the user asks for an Ascend card, or any part of what it needs is on this host."""
    return device == "npu" or is_installed() or cann_home() is not None or bool(_device_nodes())


def cann_home() -> Path | None:
    """The directory of CANN: as set_env.sh says, else where the installer puts it."""
    for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"):
        if os.environ.get(name):
            return Path(os.environ[name])
    for root in ROOTS:
        for place in (root / "ascend-toolkit" / "latest", root / "cann", root / "latest"):
            if place.is_dir():
                return place
    return None


def cann_version() -> str | None:
    """The version that CANN's own files state."""
    home = cann_home()
    if home is None:
        return None
    files = [home / name for name in _VERSION_FILES] + sorted(home.glob("*-linux/ascend_toolkit_install.info"))
    return next((found for file in files if (found := _stated_version(file)) is not None), None)


def driver_version() -> str | None:
    return _stated_version(DRIVER)


def set_env_command() -> str:
    """The command that puts CANN's libraries on the path of a shell."""
    home = cann_home()
    places = [] if home is None else [home / "set_env.sh", home.parent / "set_env.sh"]
    found = next((str(place) for place in places if place.is_file()), DEFAULT_SET_ENV)
    return f"source {found}"


def _stated_version(file: Path) -> str | None:
    try:
        found = _VERSION.search(file.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return found.group(1) if found else None


def _version_problem() -> str | None:
    own, needed = _torch_version(), version() or ""
    if needed.split(".")[:2] == own.split(".")[:2]:
        return None
    return f"{_name()} needs torch {'.'.join(needed.split('.')[:2])}, found {own}: {_install_matching()}"


def _library_problem() -> str | None:
    missing = next((name for name in LIBRARIES if not _can_be_loaded(name)), None)
    return None if missing is None else _missing_library(missing)


def _can_be_loaded(library: str) -> bool:
    """A look at the search path comes first: it does not load the library into this process."""
    directories = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    if any(Path(directory, library).exists() for directory in directories if directory):
        return True
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _missing_library(library: str) -> str:
    if library.startswith("libascend_hal"):
        return f"the driver's library {library} is not found: install the Ascend driver and check 'npu-smi info'"
    if cann_home() is None:
        return (
            f"{_name()} is installed, but CANN's library {library} is not found: install CANN ({_matching_cann()}), "
            f"then run '{set_env_command()}' in this shell"
        )
    return (
        f"{_name()} is installed, but CANN's library {library} is not on the library path: "
        f"run '{set_env_command()}' in this shell ({_cann()})"
    )


def _matching_cann() -> str:
    """Read from the table in torch-npu's own description, which older releases complete."""
    stated = _cann_in_table()
    wanted = f"{_name()} is listed with {stated}" if stated else f"for {_name()} see"
    return f"{wanted} in {TABLE}" if stated else f"{wanted} {TABLE}"


def _cann_in_table() -> str | None:
    own = version()
    try:
        text = str(importlib.metadata.metadata("torch-npu").get_payload())  # type: ignore[attr-defined]
    except importlib.metadata.PackageNotFoundError:
        return None
    cann = None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) >= 3:
            cann = cells[0] or cann
            if cells[2] == own and cann is not None and cann.startswith("CANN "):
                return cann
    return None


def _install_matching() -> str:
    return f"pip install 'torch-npu=={'.'.join(_torch_version().split('.')[:2])}.*'"


def _name() -> str:
    return f"torch-npu {version() or '(unknown version)'}"


def _cann() -> str:
    home = cann_home()
    return "CANN" if home is None else f"CANN {cann_version() or 'of unknown version'} in {home}"


def _torch_version() -> str:
    return importlib.metadata.version("torch")


def _torch_npu_part() -> Part:
    if not is_installed():
        return Part("torch-npu", "not installed", _install_matching())
    return Part("torch-npu", version() or "unknown version", load())


def _cann_part() -> Part:
    home = cann_home()
    if home is None:
        return Part("CANN", "not found", f"install CANN, then run '{set_env_command()}'")
    found = f"{cann_version() or 'unknown version'} in {home}"
    is_sourced = any(os.environ.get(name) for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"))
    return Part("CANN", found, None if is_sourced else f"not set up in this shell, run '{set_env_command()}'")


def _driver_part() -> Part:
    found = driver_version()
    return Part("driver", found) if found else Part("driver", "not found", f"{DRIVER} is missing: install the driver")


def _cards_part() -> Part:
    nodes = _device_nodes()
    visible = os.environ.get("ASCEND_RT_VISIBLE_DEVICES")
    limited = "" if visible is None else f", ASCEND_RT_VISIBLE_DEVICES={visible}"
    found = f"{len(nodes)} in /dev{limited}"
    return Part("cards", found, None if nodes else "no /dev/davinci*: check 'npu-smi info'")


def _device_nodes() -> list[Path]:
    return sorted(path for path in Path("/dev").glob("davinci*") if path.name.removeprefix("davinci").isdigit())
