"""Find the rank of this process and the number of processes, from a launcher's environment or the dist_* options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tympan.errors import UserError

LOCALHOST = "127.0.0.1"


@dataclass(frozen=True)
class DistOptions:
    """ESPnet2's options for several hosts."""

    init_method: str = "env://"
    world_size: int | None = None
    rank: int | None = None
    local_rank: int | None = None
    master_addr: str | None = None
    master_port: int | None = None
    launcher: str | None = None
    multiprocessing: bool = False
    """dist_rank and dist_world_size count hosts, and each host starts its own processes."""


@dataclass(frozen=True)
class Ranks:
    """Rank and rendezvous of a worker."""

    rank: int
    size: int
    local_rank: int
    init_method: str = "env://"


@dataclass(frozen=True)
class Hosts:
    """Rank and rendezvous of a host, if each host starts its own processes."""

    rank: int = 0
    size: int = 1
    master_addr: str = LOCALHOST
    master_port: int = 0
    """0 means that the first host chooses a port."""


def worker_ranks(options: DistOptions, environment: Mapping[str, str]) -> Ranks | None:
    """Return the rank of this process if a launcher started it as one of many, else None."""
    if "RANK" in environment and "WORLD_SIZE" in environment:
        local = environment.get("LOCAL_RANK", options.local_rank)
        return Ranks(int(environment["RANK"]), int(environment["WORLD_SIZE"]), int(local or 0))
    if options.multiprocessing:
        return None
    place = _launched(options, environment)
    if place is None:
        return None
    rank, size, local_rank = place
    return Ranks(rank, size, local_rank, _init_method(options, environment))


def hosts(options: DistOptions, environment: Mapping[str, str]) -> Hosts:
    """Return the hosts of a run in which each host starts its own processes (--multiprocessing_distributed true)."""
    if not options.multiprocessing:
        return Hosts()
    if options.launcher == "slurm":
        size = _number(environment, "SLURM_NNODES", "SLURM_JOB_NUM_NODES", launcher="slurm")
        rank = _number(environment, "SLURM_NODEID", launcher="slurm")
    elif options.launcher == "mpi":
        rank, size, _ = _mpi(environment)
    else:
        size, rank = options.world_size or 1, options.rank or 0
    if size == 1:
        return Hosts()
    if options.init_method.startswith("file://"):
        raise UserError(
            "--dist_init_method file:// can't be used with --multiprocessing_distributed true, which needs an address. "
            "Give --dist_master_addr and --dist_master_port, or --dist_init_method tcp://ADDRESS:PORT"
        )
    address, port = _master(options, environment)
    return Hosts(rank, size, address, port)


def first_host(node_list: str) -> str:
    """Return the first host of Slurm's compressed list: gpu03 for `gpu[03-05,9],login1`."""
    match = re.match(r"([^,\[]+)(?:\[([^\]]+)\])?([^,]*)", node_list)
    if match is None:
        raise UserError(f"SLURM_JOB_NODELIST is '{node_list}', which contains no host name")
    prefix, numbers, suffix = match.groups()
    return prefix + (re.split(r"[,-]", numbers)[0] if numbers else "") + suffix


def _launched(options: DistOptions, environment: Mapping[str, str]) -> tuple[int, int, int] | None:
    if options.launcher == "slurm":
        return (
            _number(environment, "SLURM_PROCID", launcher="slurm"),
            _number(environment, "SLURM_NTASKS", "SLURM_NPROCS", launcher="slurm"),
            _number(environment, "SLURM_LOCALID", launcher="slurm"),
        )
    if options.launcher == "mpi":
        return _mpi(environment)
    if options.world_size is None and options.rank is None:
        return None
    if options.world_size is None or options.rank is None:
        missing = "dist_world_size" if options.world_size is None else "dist_rank"
        raise UserError(f"--{missing} is missing: --dist_rank and --dist_world_size must be given together")
    if not 0 <= options.rank < options.world_size:
        raise UserError(
            f"--dist_rank {options.rank}: must be from 0 to {options.world_size - 1} "
            f"(--dist_world_size {options.world_size})"
        )
    return options.rank, options.world_size, options.local_rank or 0


def _mpi(environment: Mapping[str, str]) -> tuple[int, int, int]:
    """Open MPI, MPICH/Intel MPI, or a PMIx launcher."""
    return (
        _number(environment, "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", launcher="mpi"),
        _number(environment, "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_SIZE", launcher="mpi"),
        _number(environment, "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMIX_LOCAL_RANK", launcher="mpi"),
    )


def _number(environment: Mapping[str, str], *names: str, launcher: str) -> int:
    for name in names:
        if name in environment:
            return int(environment[name])
    start = "srun" if launcher == "slurm" else "mpirun"
    raise UserError(f"--dist_launcher {launcher}: the environment variable {names[0]} is not set. Start with {start}")


def _init_method(options: DistOptions, environment: Mapping[str, str]) -> str:
    if options.init_method != "env://":
        return options.init_method
    address, port = _master(options, environment)
    return f"tcp://{address}:{port}"


def _master(options: DistOptions, environment: Mapping[str, str]) -> tuple[str, int]:
    if options.init_method.startswith("tcp://"):
        address, _, port = options.init_method.removeprefix("tcp://").rpartition(":")
        return address, int(port)
    address = options.master_addr or environment.get("MASTER_ADDR", "")
    port_text = options.master_port or environment.get("MASTER_PORT")
    if options.launcher == "slurm":
        node_list = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
        address = address or (first_host(node_list) if node_list else "")
        # The same port on every host of a job, and different ports for different jobs
        port_text = port_text or 12000 + int(environment.get("SLURM_JOB_ID", "0")) % 20000
    if not address or not port_text:
        raise UserError(
            "the processes need an address to connect to: give --dist_master_addr and --dist_master_port "
            "(of the first host), or --dist_init_method tcp://ADDRESS:PORT or file:///SHARED/FILE"
        )
    return address, int(port_text)
