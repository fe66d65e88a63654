"""The processes of a training run, from its options: which to start, and how they communicate."""

from __future__ import annotations

import os

import torch

from tympan.config.train import TrainConfig
from tympan.runtime.comm import Comm, Distributed, Solo
from tympan.runtime.device import backend_for
from tympan.runtime.launch import LaunchPlan
from tympan.runtime.ranks import DistOptions, Ranks, hosts


def dist_options_of(config: TrainConfig) -> DistOptions:
    """The options about ranks and hosts."""
    return DistOptions(
        init_method=config.dist_init_method,
        world_size=config.dist_world_size,
        rank=config.dist_rank,
        local_rank=config.local_rank,
        master_addr=config.dist_master_addr,
        master_port=config.dist_master_port,
        launcher=config.dist_launcher,
        multiprocessing=config.multiprocessing_distributed,
    )


def launch_plan(config: TrainConfig, dist_options: DistOptions) -> LaunchPlan | None:
    """The processes that this one starts; None if there is only one, which is this one."""
    found = hosts(dist_options, os.environ)
    processes = config.ngpu if config.ngpu > 0 else config.nproc
    elastic = None
    if config.elastic is not None:
        low, high = config.elastic.split(":")
        elastic = (int(low), int(high))
    if processes * found.size == 1 and elastic is None:
        return None
    cores = os.cpu_count() or 1
    return LaunchPlan(
        processes=processes,
        hosts=found,
        max_restarts=config.max_restarts,
        elastic=elastic,
        threads=max(1, cores // (elastic[1] if elastic else processes)),
    )


def join_ranks(config: TrainConfig, device: torch.device, ranks: Ranks | None) -> Comm:
    """The connection to the other ranks, or a stand-in for a single process."""
    if ranks is None:
        return Solo()
    backend = backend_for(device.type, config.dist_backend)
    return Distributed(
        device,
        backend=backend,
        init_method=ranks.init_method,
        rank=ranks.rank,
        size=ranks.size,
        timeout_s=config.dist_timeout,
    )
