"""Training with several processes as a user starts it: failures, stops and messages."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from train_corpus import command, environment, run, weights

STEADY = ("--encoder_conf", "{dropout_rate: 0.0, positional_dropout_rate: 0.0, attention_dropout_rate: 0.0}",
          "--decoder_conf", "{dropout_rate: 0.0, positional_dropout_rate: 0.0}",
          "--train_dtype", "float64", "--save_interval_steps", "1", "--log_interval", "1")  # fmt: skip


@pytest.fixture(scope="module")
def one_process(beeps: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("one")
    done = run(beeps, output, *STEADY)
    assert done.returncode == 0, done.stderr
    return output


def largest_difference(a: Path, b: Path) -> float:
    first, second = weights(a), weights(b)
    return max(float((first[name].double() - second[name].double()).abs().max()) for name in first)


def start(config: Path, output: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(command(config, output, *options), env=environment(), stderr=subprocess.PIPE, text=True)


def wait_for_batch(output: Path, pattern: str, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    log = output / "train.log"
    while not (log.exists() and re.search(pattern, log.read_text(encoding="utf-8"))):
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        assert time.monotonic() < deadline, "the run does not get there"
        time.sleep(0.02)


def workers_of(parent: int) -> list[int]:
    """Process ids below `parent` that are training workers, the first rank first."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _is_below(int(entry.name), parent):
            variables = _read(entry / "environ")
            arguments = _read(entry / "cmdline")
            is_training = b"AsrTask" in arguments and b"spawn_main" not in arguments
            if b"\0RANK=" in b"\0" + variables and is_training:
                rank = re.search(rb"(?:^|\0)RANK=(\d+)", variables)
                assert rank is not None
                found.append((int(rank[1]), int(entry.name)))
    return [pid for _, pid in sorted(found)]


def _is_below(pid: int, parent: int) -> bool:
    while pid > 1:
        status = _read(Path(f"/proc/{pid}/stat")).rpartition(b")")[2].split()
        if not status:
            return False
        pid = int(status[1])
        if pid == parent:
            return True
    return False


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_killed_worker_is_replaced_and_no_utterance_counts_twice(
    beeps: Path, one_process: Path, tmp_path: Path
) -> None:
    process = start(beeps, tmp_path, *STEADY, "--nproc", "2")
    wait_for_batch(tmp_path, r"1epoch:train:3-3batch", process)
    victims = workers_of(process.pid)
    assert len(victims) == 2
    os.kill(victims[1], signal.SIGKILL)
    assert process.wait(timeout=200) == 0
    log = (tmp_path / "train.log").read_text(encoding="utf-8")
    assert re.search(r"resumed at epoch 1, batch [3-7]", log)
    assert largest_difference(one_process / "2epoch.pth", tmp_path / "2epoch.pth") < 1e-7
    assert (tmp_path / "train.rank1.log").exists()


@pytest.mark.parametrize(("asked", "processes"), [(signal.SIGTERM, "2"), (signal.SIGINT, "2"), (signal.SIGINT, "1")])
def test_a_signal_saves_and_asks_to_be_requeued_then_resumes_with_another_number(
    beeps: Path, one_process: Path, tmp_path: Path, asked: signal.Signals, processes: str
) -> None:
    """Stopped as one or two processes, resumed as one: the same global order, the same result."""
    options = tuple("1000" if before == "--save_interval_steps" else word
                    for before, word in zip(("", *STEADY), STEADY, strict=False))  # fmt: skip
    process = start(beeps, tmp_path, *options, "--nproc", processes)
    wait_for_batch(tmp_path, r"1epoch:train:2-2batch", process)
    process.send_signal(asked)
    assert process.wait(timeout=120) == 75
    saved = torch.load(tmp_path / "checkpoint.pth", weights_only=True)
    assert saved["position"]["step"] >= 2
    done = run(beeps, tmp_path, *options, "--resume", "true")
    assert done.returncode == 0, done.stderr
    assert largest_difference(one_process / "2epoch.pth", tmp_path / "2epoch.pth") < 1e-7


def test_a_users_mistake_in_a_worker_is_one_message(beeps: Path, tmp_path: Path) -> None:
    done = run(beeps, tmp_path, "--nproc", "2", "--freeze_param", "encodr")
    assert done.returncode == 2
    assert done.stderr.count("--freeze_param encodr") == 1
    assert "Traceback" not in done.stderr


def test_the_first_traceback_names_its_rank(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text(
        "import os, sys, time\n"
        "from tympan.runtime.launch import as_worker\n"
        "rank = int(os.environ['RANK'])\n"
        "def work():\n"
        "    if rank == 1:\n"
        "        raise RuntimeError('the cable is out')\n"
        "    time.sleep(60)\n"
        "sys.exit(as_worker(rank, work))\n"
    )
    launcher = (
        "import sys\n"
        "from tympan.runtime.launch import LaunchPlan, launch\n"
        f"sys.exit(launch(LaunchPlan(processes=2, max_restarts=0), [{str(script)!r}]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", launcher], capture_output=True, text=True, timeout=100, env=environment()
    )
    assert done.returncode == 1
    assert "rank 1 failed first" in done.stderr
    assert "RuntimeError: the cable is out" in done.stderr


def test_a_rank_that_hangs_is_found_and_named(tmp_path: Path) -> None:
    script = tmp_path / "hangs.py"
    script.write_text(
        "import os, time, torch\n"
        "from tympan.runtime.comm import Distributed\n"
        "comm = Distributed(torch.device('cpu'), backend='gloo', timeout_s=3.0)\n"
        "comm.any(False)\n"
        "def lost_in_thought():\n"
        "    time.sleep(100)\n"
        "if comm.rank == 1:\n"
        "    lost_in_thought()\n"
        "comm.any(False)\n"
    )
    launcher = (
        "import sys\n"
        "from tympan.runtime.launch import LaunchPlan, launch\n"
        f"sys.exit(launch(LaunchPlan(processes=2, max_restarts=0), [{str(script)!r}]))\n"
    )
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", launcher], capture_output=True, text=True, timeout=100, env=environment()
    )
    assert done.returncode == 1
    assert time.monotonic() - begin < 60
    assert "no progress for 3 s" in done.stderr
    assert "not waiting, so they block the others: 1" in done.stderr
    assert "lost_in_thought" in done.stderr
    assert "rank 0: waiting in any" in done.stderr


@pytest.mark.slow
def test_an_elastic_run_continues_with_fewer_processes(beeps: Path, one_process: Path, tmp_path: Path) -> None:
    process = start(beeps, tmp_path, *STEADY, "--elastic", "1:2")
    wait_for_batch(tmp_path, r"1epoch:train:2-2batch", process)
    os.kill(workers_of(process.pid)[1], signal.SIGKILL)
    assert process.wait(timeout=250) == 0, process.stderr.read() if process.stderr else ""
    log = (tmp_path / "train.log").read_text(encoding="utf-8")
    assert "process 1 of 2" in log
    assert "process 1 of 1" in log
    assert largest_difference(one_process / "2epoch.pth", tmp_path / "2epoch.pth") < 1e-7


@pytest.mark.slow
def test_torchrun_starts_it_too(beeps: Path, one_process: Path, tmp_path: Path) -> None:
    train = command(beeps, tmp_path, *STEADY)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", *train[1:]]
    done = subprocess.run(torchrun, env=environment(), capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert largest_difference(one_process / "2epoch.pth", tmp_path / "2epoch.pth") < 1e-7


@pytest.mark.slow
@pytest.mark.parametrize("meeting", ["file", "tcp", "slurm"])
def test_espnet2s_options_for_several_hosts(beeps: Path, one_process: Path, tmp_path: Path, meeting: str) -> None:
    """Each process started by hand, as a launcher or a user on two hosts would."""
    port = str(23000 + os.getpid() % 2000)
    processes = []
    for rank in range(2):
        options: tuple[str, ...] = ("--dist_world_size", "2", "--dist_rank", str(rank))
        variables: dict[str, str] = {}
        if meeting == "file":
            options += ("--dist_init_method", f"file://{tmp_path}/meeting")
        elif meeting == "tcp":
            options += ("--dist_master_addr", "127.0.0.1", "--dist_master_port", port)
        else:
            options = ("--dist_launcher", "slurm", "--dist_master_addr", "127.0.0.1")
            variables = {
                "SLURM_PROCID": str(rank),
                "SLURM_NTASKS": "2",
                "SLURM_LOCALID": str(rank),
                "SLURM_JOB_ID": port,
            }
        train = command(beeps, tmp_path / "exp", *STEADY, *options)
        processes.append(subprocess.Popen(train, env={**environment(), **variables}, stderr=subprocess.DEVNULL))
    assert [process.wait(timeout=200) for process in processes] == [0, 0]
    assert largest_difference(one_process / "2epoch.pth", tmp_path / "exp" / "2epoch.pth") < 1e-7


def test_sharded_weights_with_attention_plots_asked_for(beeps: Path, tmp_path: Path) -> None:
    """One process can't run a model that is sharded over two. This is reported, and the run continues."""
    done = run(beeps, tmp_path, "--fsdp", "true", "--nproc", "2", "--num_att_plot", "1", "--max_epoch", "1")
    assert done.returncode == 0, done.stderr
    assert "--fsdp true: attention is not plotted" in done.stderr
