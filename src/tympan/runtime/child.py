"""Start Python processes that import nothing from their working directory and end with their parent.

`python -m` and `python -c` put the working directory first on sys.path, so that a file `yaml.py` in the user's data
directory would be imported. Every Python child process must be started with a command of this module; a test checks it.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multiprocessing.context import SpawnContext

PYTHON = sys.executable
PARENT = "TYMPAN_PARENT"
"""Environment variable `PID:SIGNAL`: the parent process, and the signal that the child gets when the parent ends."""
LAUNCHER = "TYMPAN_LAUNCHER"
"""Environment variable `HOST:PID`: a process that started this one through other programs, and that it ends with."""
POLL_S = 1.0
_PR_SET_PDEATHSIG = 1
_HAS_SAFE_PATH = sys.version_info >= (3, 11)

# Python 3.10 has no -P. `sys` is built in, so nothing is imported before the working directory ('') is removed.
_WITHOUT_DIRECTORY = "import sys; sys.path[:] = [entry for entry in sys.path if entry]\n"
_DIRECTORY_LAST = "import os; sys.path.append(os.getcwd())\n"
_RUN_MODULE = "import runpy; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"


def module_arguments(module: str, arguments: Sequence[str] = (), *, safe_path: bool = _HAS_SAFE_PATH) -> list[str]:
    """Return the Python arguments that run a module as `-m` does. `safe_path`: whether Python supports -P."""
    start = ["-P", "-m", module] if safe_path else ["-c", _WITHOUT_DIRECTORY + _RUN_MODULE, module]
    return [*start, *arguments]


def own_module_arguments(module: str) -> list[str]:
    """Return the Python arguments that run a module of the user. The working directory is last on sys.path."""
    code = _WITHOUT_DIRECTORY + _DIRECTORY_LAST + _RUN_MODULE
    return [*(["-P"] if _HAS_SAFE_PATH else []), "-c", code, module]


def module_command(module: str, arguments: Sequence[str] = ()) -> list[str]:
    """Return the command that runs a module with this Python."""
    return [PYTHON, *module_arguments(module, arguments)]


def code_command(code: str, *, safe_path: bool = _HAS_SAFE_PATH) -> list[str]:
    """Return the command that runs a string of code with this Python. `safe_path`: whether Python supports -P."""
    return [PYTHON, *(["-P", "-c", code] if safe_path else ["-c", _WITHOUT_DIRECTORY + code])]


def script_arguments(path: str) -> list[str]:
    """Return the Python arguments that run the user's script again. It can import modules from its own directory."""
    return [path]


def child_environment(
    extra: Mapping[str, str] | None = None, *, ends_by: signal.Signals = signal.SIGKILL
) -> dict[str, str]:
    """Return the environment for a child that gets this signal when this process ends, for whatever reason."""
    return {**os.environ, **(extra or {}), PARENT: f"{os.getpid()}:{int(ends_by)}"}


def launched_environment() -> dict[str, str]:
    """Return the environment for a program that starts Tympan's commands, such as run.pl: they end with this process.

    On another host, they don't: there, the program has to end them.
    """
    return {**os.environ, LAUNCHER: f"{socket.gethostname()}:{os.getpid()}"}


def spawn_context() -> SpawnContext:
    """Return the spawn context of multiprocessing. Its processes import some modules before they get our sys.path."""
    import multiprocessing.util

    # multiprocessing gets the flags of its helper processes from here; there is no other way to add one.
    multiprocessing.util._args_from_interpreter_flags = _flags_of_helpers  # type: ignore[attr-defined]
    return multiprocessing.get_context("spawn")


def end_with_parent() -> None:
    """End this process when its parent ends. For children started with `child_environment` or by torchrun."""
    host, _, launcher = os.environ.pop(LAUNCHER, "").rpartition(":")
    if host == socket.gethostname() and launcher.isdigit():
        threading.Thread(target=_end_with, args=(int(launcher),), name="tympan-launcher", daemon=True).start()
    parent = os.environ.pop(PARENT, None)  # must not be inherited by the children of this process
    if parent is None and "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    pid, number = (int(part) for part in (parent or f"{os.getppid()}:{int(signal.SIGKILL)}").split(":"))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    else:
        threading.Thread(target=_watch, args=(pid, number), name="tympan-parent", daemon=True).start()
    if os.getppid() != pid:  # the parent has ended already
        os.kill(os.getpid(), number)


def is_alive(pid: int) -> bool:
    """Return whether a process with this id runs on this host."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _watch(pid: int, number: int) -> None:
    while os.getppid() == pid:
        time.sleep(POLL_S)
    os.kill(os.getpid(), number)


def _end_with(pid: int) -> None:
    try:
        select.select([os.pidfd_open(pid)], [], [])  # unlike `is_alive`, this notices a process that nobody waits for
    except (AttributeError, OSError):
        while is_alive(pid):
            time.sleep(POLL_S)
    os.kill(os.getpid(), signal.SIGKILL)


def _flags_of_helpers() -> list[str]:
    from subprocess import _args_from_interpreter_flags  # type: ignore[attr-defined]

    flags: list[str] = _args_from_interpreter_flags()
    safe = "-P" if _HAS_SAFE_PATH else "-I"
    return flags if safe in flags else [*flags, safe]
