"""Jobs in many processes: results are in order, and nothing is lost when a worker dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile

sys.path.insert(0, str(Path(__file__).parent))
import jobs

from tympan.bin import make_features
from tympan.data.ark import read_ark, read_matrix
from tympan.data.kaldi_dir import read_table, write_table
from tympan.errors import UserError
from tympan.runtime import executor
from tympan.runtime.child import code_command
from tympan.runtime.executor import map_jobs


@pytest.mark.parametrize("nj", [1, 2])
def test_results_come_in_order(nj: int) -> None:
    found = list(map_jobs(jobs.square, range(50), nj=nj, description="squares"))
    assert found == [number * number for number in range(50)]


@pytest.mark.parametrize("nj", [1, 2])
def test_an_exception_reaches_the_caller(nj: int) -> None:
    with pytest.raises(UserError, match="item 3 is bad"):
        list(map_jobs(jobs.fail_at_three, range(1000), nj=nj, description="jobs"))


def test_a_killed_worker_loses_nothing(tmp_path: Path) -> None:
    items = [(number, str(tmp_path)) for number in range(20)]
    assert list(map_jobs(jobs.die_once, items, nj=2, description="jobs")) == list(range(20))
    assert (tmp_path / "died").exists()


def test_a_job_that_kills_every_worker_is_given_up() -> None:
    with pytest.raises(UserError, match=r"died 3 times.*smaller --nj"):
        list(map_jobs(jobs.die_always, range(4), nj=2, description="jobs"))


def test_mistakes_in_the_options() -> None:
    for nj in (0, 1_000_000):
        with pytest.raises(UserError, match=f"--nj {nj}: must be between 1 and 1024"):
            list(map_jobs(jobs.square, [1], nj=nj, description="jobs"))
    with pytest.raises(UserError, match="needs --dask_address"):
        list(map_jobs(jobs.square, [1], nj=1, description="jobs", executor="dask"))


@pytest.fixture
def dask_cluster(tmp_path: Path) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """A real scheduler and two worker processes, as a user starts them."""
    pytest.importorskip("distributed")
    scheduler_file = tmp_path / "scheduler.json"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler"]
    common = ["--scheduler-file", str(scheduler_file)]
    arguments = [*common, "--host", "127.0.0.1", "--port", "0", "--no-dashboard"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment, "cwd": tmp_path}
    started = [subprocess.Popen([*command, *arguments], **quiet)]
    try:
        worker = [sys.executable, "-m", "distributed.cli.dask_worker", *common, "--nthreads", "1", "--no-nanny"]
        started += [
            subprocess.Popen([*worker, "--no-dashboard", "--local-directory", str(tmp_path)], **quiet) for _ in range(2)
        ]
        from distributed import Client

        with Client(scheduler_file=str(scheduler_file), timeout=60, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=60)
            address = client.scheduler.address
        yield address, started[1:]
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_dask_survives_the_death_of_a_worker(
    tmp_path: Path, dask_cluster: tuple[str, list[subprocess.Popen[bytes]]]
) -> None:
    address, workers = dask_cluster
    folder = tmp_path / "out"
    items = [(number, str(folder)) for number in range(40)]
    found = []
    for result in map_jobs(jobs.write_slowly, items, nj=2, description="jobs", executor="dask", dask_address=address):
        found.append(result)
        if len(found) == 8:
            victim = next(worker for worker in workers if worker.pid == result[1])
            os.kill(victim.pid, signal.SIGKILL)
            killed_at = time.monotonic()
    assert [number for number, _ in found] == list(range(40))
    assert {process for _, process in found} == {worker.pid for worker in workers}
    # Only complete files, one per job, and at most one temporary file: the one that was being written at the end.
    assert sorted(path.name for path in folder.glob("*.txt")) == sorted(f"{number}.txt" for number in range(40))
    assert all((folder / f"{number}.txt").read_text() == f"{number}\n" for number in range(40))
    assert time.monotonic() - killed_at < 60


def test_no_scheduler_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr(executor, "CONNECT_TIMEOUT_S", 1)
    with pytest.raises(UserError, match=r"can't connect to a Dask scheduler at tcp://127.0.0.1:1 "):
        list(map_jobs(jobs.square, [1], nj=1, description="jobs", executor="dask", dask_address="tcp://127.0.0.1:1"))


@pytest.mark.parametrize("address", ["nonsense", "tcp://[::1:9", "tcp://host:port", "tcp://"])
def test_an_invalid_address_of_a_scheduler_is_one_message(address: str) -> None:
    """A Client that is only half made prints a traceback when it is collected, up to 20 s later."""
    pytest.importorskip("distributed")
    code = (
        "from tympan.runtime.executor import map_jobs\n"
        f"list(map_jobs(abs, [1], nj=1, description='jobs', executor='dask', dask_address={address!r}))\n"
    )
    done = subprocess.run(code_command(code), capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].startswith(
        f"tympan.errors.UserError: can't connect to a Dask scheduler at {address} ("
    )


def test_a_cluster_without_workers_is_given_up(
    monkeypatch: pytest.MonkeyPatch, dask_cluster: tuple[str, list[subprocess.Popen[bytes]]]
) -> None:
    monkeypatch.setattr(executor, "NO_WORKERS_TIMEOUT_S", 0.5)
    address, _ = dask_cluster
    with pytest.raises(UserError, match=r"no workers left|several Dask workers died"):
        list(map_jobs(jobs.die_always, range(4), nj=2, description="jobs", executor="dask", dask_address=address))


def test_an_exception_on_dask_reaches_the_caller(dask_cluster: tuple[str, list[subprocess.Popen[bytes]]]) -> None:
    with pytest.raises(UserError, match="item 3 is bad"):
        list(
            map_jobs(
                jobs.fail_at_three, range(10), nj=2, description="jobs", executor="dask", dask_address=dask_cluster[0]
            )
        )


def test_features_on_dask_survive_the_death_of_a_worker(
    tmp_path: Path, dask_cluster: tuple[str, list[subprocess.Popen[bytes]]]
) -> None:
    """Jobs that were running on the dead worker are run by the other one, and are in the output once."""
    address, workers = dask_cluster
    rng = np.random.default_rng(0)
    soundfile.write(tmp_path / "a.wav", rng.normal(0, 0.1, 48000), 16000)
    ids = [f"u{number:03d}" for number in range(200)]
    write_table(tmp_path / "data" / "wav.scp", dict.fromkeys(ids, tmp_path / "a.wav"))
    out = tmp_path / "out"

    def kill_one() -> None:
        deadline = time.monotonic() + 60
        while len(list((out / "archive").glob("*.index"))) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(workers[0].pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_one)
    killer.start()
    arguments = ["--feats_type", "fbank", "--dither", "0", "--utterances_per_archive", "5", "--nj", "2"]
    where = ["--executor", "dask", "--dask_address", address]
    assert make_features.main([str(tmp_path / "data"), str(out), *arguments, *where]) == 0
    killer.join()
    assert workers[0].wait(timeout=10) == -signal.SIGKILL
    places = read_table(out / "feats.scp")
    assert list(places) == ids
    archived = [key for ark in sorted((out / "archive").glob("*.ark")) for key, _ in read_ark(ark)]
    assert sorted(archived) == ids
    assert {read_matrix(place).shape for place in places.values()} == {(298, 80)}


KILLED_PARENT = """
import os, pathlib, sys, time
from tympan.runtime.executor import map_jobs

def wait(path):
    pathlib.Path(path).write_text(str(os.getpid()))
    time.sleep(60)

if __name__ == "__main__":
    list(map_jobs(wait, sys.argv[1:], nj=2, description="waiting"))
"""


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for processes in /proc")
def test_workers_end_with_a_killed_parent(tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(KILLED_PARENT)
    notes = [tmp_path / name for name in ("a", "b")]
    parent = subprocess.Popen([sys.executable, str(tmp_path / "parent.py"), *map(str, notes)])
    until = time.monotonic() + 60
    while not all(note.exists() and note.read_text() for note in notes) and time.monotonic() < until:
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    workers = [int(note.read_text()) for note in notes]
    while any(is_running(worker) for worker in workers) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(is_running(worker) for worker in workers)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
