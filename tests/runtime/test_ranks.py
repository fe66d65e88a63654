"""The rank of a process, from the environment of each launcher."""

from __future__ import annotations

import pytest

from tympan.errors import UserError
from tympan.runtime.ranks import DistOptions, Hosts, Ranks, first_host, hosts, worker_ranks

SLURM = {
    "SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_NNODES": "2", "SLURM_NODEID": "1",
    "SLURM_JOB_NODELIST": "gpu[03-04]", "SLURM_JOB_ID": "777",
}  # fmt: skip


def test_alone() -> None:
    assert worker_ranks(DistOptions(), {}) is None
    assert hosts(DistOptions(), {}) == Hosts()


def test_torchrun() -> None:
    environment = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}
    assert worker_ranks(DistOptions(), environment) == Ranks(3, 4, 1)


def test_slurm_tasks_are_workers() -> None:
    found = worker_ranks(DistOptions(launcher="slurm"), SLURM)
    assert found == Ranks(5, 8, 1, "tcp://gpu03:12777")


def test_slurm_nodes_start_their_own() -> None:
    options = DistOptions(launcher="slurm", multiprocessing=True, master_port=4000)
    assert worker_ranks(options, SLURM) is None
    assert hosts(options, SLURM) == Hosts(1, 2, "gpu03", 4000)


@pytest.mark.parametrize(
    "environment",
    [
        {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "0"},
        {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0"},
    ],
)
def test_mpi(environment: dict[str, str]) -> None:
    options = DistOptions(launcher="mpi", init_method="tcp://10.0.0.1:9")
    assert worker_ranks(options, environment) == Ranks(2, 4, 0, "tcp://10.0.0.1:9")


def test_by_hand() -> None:
    options = DistOptions(rank=1, world_size=2, master_addr="a", master_port=7, local_rank=0)
    assert worker_ranks(options, {}) == Ranks(1, 2, 0, "tcp://a:7")
    shared = DistOptions(rank=1, world_size=2, init_method="file:///shared/x")
    assert worker_ranks(shared, {}) == Ranks(1, 2, 0, "file:///shared/x")
    many = DistOptions(rank=1, world_size=2, init_method="tcp://b:8", multiprocessing=True)
    assert hosts(many, {}) == Hosts(1, 2, "b", 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (DistOptions(rank=1), "--dist_world_size is missing"),
        (DistOptions(rank=2, world_size=2, init_method="tcp://a:1"), "must be from 0 to 1"),
        (DistOptions(rank=0, world_size=2), "need an address to connect to"),
        (DistOptions(launcher="slurm"), "SLURM_PROCID is not set. Start with srun"),
        (DistOptions(launcher="mpi"), "Start with mpirun"),
    ],
)
def test_what_is_missing_is_named(options: DistOptions, message: str) -> None:
    with pytest.raises(UserError, match=message):
        worker_ranks(options, {})


@pytest.mark.parametrize(
    ("text", "host"),
    [("n1", "n1"), ("gpu[03-05,9],login1", "gpu03"), ("a,b", "a"), ("rack[7]-x", "rack7-x"), ("c[1,4]", "c1")],
)
def test_first_host_of_slurms_list(text: str, host: str) -> None:
    assert first_host(text) == host
