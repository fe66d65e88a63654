"""Run commands of Tympan as a user does, without the time that imports take.

The server imports torch once and forks. A fork runs one command, or up to 100, which takes half of the time; it can be
stopped from outside, and the exit code and the output are those of the real command.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import io
import json
import os
import resource
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

import tympan.config.choices
from tympan.config.registry import Registry
from tympan.models.transducer_lattice import Lattice, arc_occupancies
from tympan.runtime.child import module_command

ROOT = Path(__file__).parents[2]
TIME_LIMIT_S = 120
MEMORY_LIMIT = 3 << 30
"""Bytes that a command may take beyond what the process has."""
COMMANDS_PER_PROCESS = 100
OUTPUT = Path("output.txt")


@dataclass(frozen=True)
class Ended:
    """How a command ended. `code` is None if it did not end in time."""

    code: int | None
    output: str


class TrialServer:
    """The server, from the side of the tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process = subprocess.Popen(
            module_command("tests.faults.trial_server"),
            cwd=folder,
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
                "XDG_CACHE_HOME": str(folder / "cache"),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, arguments: Sequence[str], *, fresh: bool = True) -> Ended:
        """Run `tympan ARGUMENTS`, in a process of its own or in one that has run other commands before."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"arguments": list(arguments), "fresh": fresh}
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        assert answer, "the server has ended"
        return Ended(**json.loads(answer))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)


def serve() -> None:
    _prepare()
    worker: Worker | None = None
    for line in sys.stdin:
        request = json.loads(line)
        if worker is None or request["fresh"] or worker.count == COMMANDS_PER_PROCESS:
            if worker is not None:
                worker.end()
            worker = Worker()
        code, output = worker.run(request["arguments"])
        if code is None or code < 0:
            worker.end()
            worker = None
        print(json.dumps({"code": code, "output": output}), flush=True)
    if worker is not None:
        worker.end()


class Worker:
    """A fork of the server that runs commands, one after the other."""

    def __init__(self) -> None:
        self.count = 0
        (theirs_in, self._to), (self._from, theirs_out) = os.pipe(), os.pipe()
        self._id = os.fork()
        if self._id == 0:
            os.close(self._to)  # otherwise the fork would never see the end of the requests
            os.close(self._from)
            _work(theirs_in, theirs_out)
        os.close(theirs_in)
        os.close(theirs_out)

    def run(self, arguments: list[str]) -> tuple[int | None, str]:
        """The exit code, None if the command does not end in time, and the output."""
        OUTPUT.write_bytes(b"")
        self.count += 1
        os.write(self._to, json.dumps(arguments).encode() + b"\n")
        answered, _, _ = select.select([self._from], [], [], TIME_LIMIT_S)
        code = None
        if answered:
            answer = os.read(self._from, 100)
            code = int(answer) if answer else os.waitstatus_to_exitcode(os.waitpid(self._id, 0)[1])
        return code, OUTPUT.read_text(encoding="utf-8", errors="replace")

    def end(self) -> None:
        os.close(self._to)
        os.close(self._from)
        with suppress(ProcessLookupError):
            os.killpg(self._id, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self._id, 0)


def _work(requests: int, answers: int) -> None:
    """In the fork: run each command and answer with its exit code. Does not return."""
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # a command that reads standard input must not read the requests
    descriptor = os.open(OUTPUT, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for number in (1, 2):
        os.dup2(descriptor, number)
    faulthandler.enable()
    with os.fdopen(requests) as lines:
        for line in lines:
            faulthandler.dump_traceback_later(TIME_LIMIT_S - 2)
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            _, hard = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY_LIMIT, hard))
            code = _run(json.loads(line))
            faulthandler.cancel_dump_traceback_later()
            os.write(answers, str(code).encode())
    os._exit(0)


def _run(arguments: list[str]) -> int:
    from tympan.bin.main import cli

    try:
        code = cli(arguments)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _prepare() -> None:
    """Import and read what every command needs, once for all forks."""
    modules = (
        "matplotlib.pyplot",
        "torch.profiler",
        "torch._inductor",
        "transformers.models.wavlm.modeling_wavlm",
        "tympan.decode.session",
        "tympan.tuning.run",
        "tympan.tasks.st",
    )
    for name in (*modules, "tympan.tasks.lm", "tympan.models.build", "tympan.training.watchers"):
        importlib.import_module(name)
    for command in ("asr_train", "lm_train", "st_train"):
        with redirect_stdout(io.StringIO()), suppress(SystemExit):
            importlib.import_module(f"tympan.bin.{command}").main(["--print_config", "--token_type", "char"])
    for registry in vars(tympan.config.choices).values():
        if isinstance(registry, Registry):
            for name in registry.names():
                registry.parameters(name)
                if not registry.target(name).startswith("torch_"):
                    registry.get_class(name)
    _compile()
    gc.freeze()


def _compile() -> None:
    """Compile what numba compiles for the loss of transducers, or read it from its cache."""
    lattice = Lattice.of(torch.tensor([2]), torch.tensor([1]))
    arc_occupancies(torch.zeros(len(lattice.frame), 2), lattice)


if __name__ == "__main__":
    serve()
