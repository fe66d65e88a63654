"""Start the processes of a run with torch's elastic agent, and report which one failed first."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tympan.errors import UserError
from tympan.runtime.child import PYTHON, child_environment, is_alive
from tympan.runtime.memory import REMEDY, is_out_of_memory, out_of_memory
from tympan.runtime.ports import require_free_port
from tympan.runtime.ranks import LOCALHOST, Hosts
from tympan.runtime.stop import EXIT_REQUEUE

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

NOTES = "TYMPAN_LAUNCH_NOTES"
"""Environment variable: the directory in which workers leave messages for the process that started them."""
PREFIX = "tympan-launch-"
"""Prefix of the name of that directory. The process id follows."""


@dataclass(frozen=True)
class LaunchPlan:
    """How many processes to start, and what to do if some of them fail."""

    processes: int
    """Number of processes on this host."""
    hosts: Hosts = field(default_factory=Hosts)
    max_restarts: int = 3
    elastic: tuple[int, int] | None = None
    """(MIN, MAX) number of workers. Each has its own agent, since torch's elastic range counts agents."""
    threads: int | None = None
    """OMP_NUM_THREADS of each process, if the user has not set it."""


def launch(plan: LaunchPlan, command: Sequence[str]) -> int:
    """Run `python COMMAND` in every worker of the plan. Returns the exit code of the run."""
    if plan.threads is not None:
        os.environ.setdefault("OMP_NUM_THREADS", str(plan.threads))
    # Otherwise restarted workers would find the addresses of the previous workers in the agent's store (torch 2.13)
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    _remove_left_notes()
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-") as notes:
        os.environ[NOTES] = notes
        if plan.elastic is not None:
            from tympan.runtime.elastic import run_agents

            code = run_agents(plan, command)
        else:
            code = run_agent(plan, command)
        return _conclude(Path(notes), code)


def run_agent(plan: LaunchPlan, command: Sequence[str]) -> int:
    """Run one agent for the processes of this host. Returns an exit code."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    if plan.hosts.rank == 0 and plan.hosts.master_port:
        require_free_port(plan.hosts.master_port)
    config = LaunchConfig(
        min_nodes=plan.hosts.size,
        max_nodes=plan.hosts.size,
        nproc_per_node=plan.processes,
        run_id=_run_id(plan.hosts),
        rdzv_backend="c10d",
        rdzv_endpoint=f"{plan.hosts.master_addr}:{plan.hosts.master_port}",
        rdzv_configs={"timeout": 900, "is_host": str(plan.hosts.rank == 0)},
        max_restarts=plan.max_restarts,
        monitor_interval=0.1,
        local_addr=LOCALHOST if plan.hosts.size == 1 else None,
        logs_specs=DefaultLogsSpecs(log_dir=logs_directory()),
    )
    os.environ.update(child_environment())  # torch's agent starts the workers with the environment of this process
    try:
        elastic_launch(config, PYTHON)(*command)
    except ChildFailedError as error:
        return report_failure(error)
    except SignalException as error:
        return exit_code_of(error)
    return 0


def is_launched() -> bool:
    """Return whether `launch` started this process."""
    return NOTES in os.environ


def as_worker(rank: int, work: Callable[[], int]) -> int:
    """Run `work` in a worker. An error is written to a file for the process that started the worker."""
    notes = os.environ.get(NOTES)
    if notes is None:
        return work()
    if any((Path(notes) / name).exists() for name in ("user_error", "stopped")):
        return 0  # a restart can't fix a mistake of the user, and must not continue a run that was stopped
    try:
        code = work()
    except UserError as error:
        _leave(Path(notes) / "user_error", str(error))
        return 2
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if is_out_of_memory(error):
            # A restart would fail on the same batch.
            _leave(Path(notes) / "user_error", f"rank {rank}: {out_of_memory(error)}")
            return 2
        logging.error("rank %d failed:\n%s", rank, traceback.format_exc())
        record_failure(traceback.format_exc())
        return 1
    if code == EXIT_REQUEUE:
        _leave(Path(notes) / "stopped", str(rank))
    return code


def record_failure(message: str) -> None:
    """Write a message to the file that the agent reads when a worker fails."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        content = {
            "message": {"message": message, "extraInfo": {"py_callstack": message, "timestamp": str(int(time.time()))}}
        }
        Path(path).write_text(json.dumps(content), encoding="utf-8")


def exit_code_of(signalled: SignalException) -> int:
    """Return the exit code of a run that a signal ended, unless a worker has noted that it saved and stopped."""
    return EXIT_REQUEUE if signalled.sigval == signal.SIGTERM else 128 + int(signalled.sigval)


def report_failure(error: ChildFailedError) -> int:
    """Print the first failure with its rank."""
    rank, failure = error.get_first_failure()
    print(f"tympan: rank {rank} failed first (exit code {failure.exitcode}):", file=sys.stderr)
    print(_message_of(failure), file=sys.stderr)
    if failure.exitcode == -signal.SIGKILL:
        print(
            f"tympan: the process was killed by signal 9, usually because the system ran out of memory. {REMEDY}",
            file=sys.stderr,
        )
    return 1


def _message_of(failure: ProcessFailure) -> str:
    content = failure.error_file_data.get("message", failure.message)
    return str(content.get("message", content)) if isinstance(content, dict) else str(content)


def _conclude(notes: Path, code: int) -> int:
    if (notes / "user_error").exists():
        raise UserError((notes / "user_error").read_text(encoding="utf-8"))
    return EXIT_REQUEUE if (notes / "stopped").exists() else code


def _leave(path: Path, text: str) -> None:
    """Write a message, unless another worker has written one before."""
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        return


def logs_directory() -> str:
    """Return the folder for the files of torch's agent. By default it would leave a new folder after every run."""
    return str(Path(os.environ[NOTES], "agent"))


def _remove_left_notes() -> None:
    """Remove the directories of launchers that were killed."""
    for directory in Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*"):
        number = directory.name.removeprefix(PREFIX).partition("-")[0]
        if number.isdigit() and not is_alive(int(number)):
            shutil.rmtree(directory, ignore_errors=True)  # fails for directories of other users


def _run_id(hosts: Hosts) -> str:
    """Return the id of the run, the same on every host."""
    return uuid.uuid4().hex if hosts.size == 1 else f"tympan-{hosts.master_addr}-{hosts.master_port}"
