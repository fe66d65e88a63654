"""--elastic MIN:MAX: a run that continues with fewer workers when one is lost.

torch's elastic range counts agents, not workers. So every worker has its own agent, and the process that the user
started holds the rendezvous store. If a worker is killed, its agent exits too, as if a host were lost. The other agents
notice this, start a new rendezvous, and continue from the last saved step.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from types import FrameType
from typing import TypedDict

from tympan.runtime.child import PYTHON, child_environment, end_with_parent, module_command
from tympan.runtime.launch import LaunchPlan, exit_code_of, logs_directory, report_failure
from tympan.runtime.ranks import LOCALHOST

LOST = 137
"""Exit code of an agent whose worker was killed."""
LAST_CALL_S = 3
KEEP_ALIVE_S = 1
KEEP_ALIVE_ATTEMPTS = 5


class _Settings(TypedDict):
    """Settings of an agent, passed on its command line."""

    port: int
    run_id: str
    min: int
    max: int
    max_restarts: int
    command: list[str]


def run_agents(plan: LaunchPlan, command: Sequence[str]) -> int:
    """Start MAX agents on this host and wait for them. The run has succeeded if one of them succeeds."""
    from torch.distributed import TCPStore

    assert plan.elastic is not None
    store = TCPStore(LOCALHOST, 0, is_master=True, wait_for_workers=False)
    settings: _Settings = {
        "port": store.port,
        "run_id": uuid.uuid4().hex,
        "min": plan.elastic[0],
        "max": plan.elastic[1],
        "max_restarts": plan.max_restarts,
        "command": list(command),
    }
    agent = module_command("tympan.runtime.elastic", [json.dumps(settings)])
    agents = [subprocess.Popen(agent, env=child_environment()) for _ in range(plan.elastic[1])]

    def forward(number: int, frame: FrameType | None) -> None:
        for process in agents:
            process.send_signal(number)

    before = signal.signal(signal.SIGTERM, forward)
    # A terminal sends it to the agents as well.
    interrupted = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        codes = [process.wait() for process in agents]
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, interrupted)
    lost = codes.count(LOST)
    if lost:
        logging.warning("%d of %d workers were lost during the run", lost, len(codes))
    others = [code for code in codes if code != LOST]
    return 0 if 0 in others else max(others, default=1)


def _agent(settings: _Settings) -> int:
    """Run one agent with one worker."""
    from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous import registry as rendezvous

    class Agent(LocalElasticAgent):
        def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
            result: RunResult = super()._monitor_workers(worker_group)
            killed = [f for f in result.failures.values() if f.exitcode == -signal.SIGKILL]
            if result.state == WorkerState.FAILED and killed:
                logging.warning("worker %d was killed: continuing without it", killed[0].pid)
                os._exit(LOST)
            return result

    parameters = RendezvousParameters(
        backend="c10d",
        endpoint=f"{LOCALHOST}:{settings['port']}",
        run_id=settings["run_id"],
        min_nodes=settings["min"],
        max_nodes=settings["max"],
        local_addr=LOCALHOST,
        is_host="false",
        last_call_timeout=LAST_CALL_S,
        keep_alive_interval=KEEP_ALIVE_S,
        keep_alive_max_attempt=KEEP_ALIVE_ATTEMPTS,
    )
    handler = rendezvous.get_rendezvous_handler(parameters)
    spec = WorkerSpec(
        role="default",
        local_world_size=1,
        entrypoint=PYTHON,
        args=tuple(settings["command"]),
        rdzv_handler=handler,
        max_restarts=settings["max_restarts"],
        monitor_interval=0.1,
        local_addr=LOCALHOST,
    )
    os.environ.update(child_environment())
    try:
        result = Agent(spec, DefaultLogsSpecs(log_dir=logs_directory())).run()
    except SignalException as error:
        return exit_code_of(error)
    handler.shutdown()
    if result.is_failed():
        return report_failure(ChildFailedError("worker", result.failures))
    # The other agents still need the store for their last messages
    time.sleep(KEEP_ALIVE_S)
    return 0


if __name__ == "__main__":
    end_with_parent()
    raise SystemExit(_agent(json.loads(sys.argv[1])))
