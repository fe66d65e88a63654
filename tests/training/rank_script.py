"""One rank of a process group: trains a small model in several ways and saves the losses and weights."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from small_asr import FeatureBatches, small_asr
from tiny import tiny_updater

from tympan.data.batch import Batch
from tympan.errors import UserError
from tympan.runtime.comm import Comm, Distributed, Solo
from tympan.runtime.parallel import ParallelOptions
from tympan.training.reporter import EpochReporter

SIZES = [5, 3, 1, 4, 2, 6, 1, 8, 2, 4]


def train(
    comm: Comm, *, epochs: int = 2, accum: int = 1, sizes: list[int] | None = None, **kinds: Any
) -> dict[str, Any]:
    options = ParallelOptions(**kinds.pop("parallel", {}))
    updater = tiny_updater(model=small_asr(), comm=comm, parallel_options=options, lr=0.002, **kinds)
    updater.parallel.model.train()
    data = FeatureBatches(sizes or SIZES, rank=comm.rank, world_size=comm.size)
    losses: list[float] = []
    for epoch in range(1, epochs + 1):
        batches = data.build_iter(epoch)
        left = data.num_steps(epoch)
        while left:
            part = EpochReporter("train", epoch, comm=comm)
            updater.learn(batches, number=min(accum, left), reporter=part)
            left -= min(accum, left)
            losses.append(part.means()["loss"])
    state = updater.state_dict()
    return {"losses": losses, "weights": updater.parallel.full_model_state(), "optimizer": state["optimizers"][0]}


def fsdp_round_trip(comm: Comm) -> dict[str, Any]:
    """Save a sharded state and load it into a new sharded updater: both must then train identically."""
    options = ParallelOptions(fsdp=True)
    data = FeatureBatches([4, 4, 4], rank=comm.rank, world_size=comm.size)
    first = tiny_updater(model=small_asr(), comm=comm, parallel_options=options, train_dtype="float64")
    batches = list(data.build_iter(1))
    _learn(first, batches[:2], comm)
    model, state = first.parallel.full_model_state(), first.state_dict()
    second = tiny_updater(model=small_asr(seed=99), comm=comm, parallel_options=options, train_dtype="float64")
    second.parallel.load_model_state(model)
    second.load_state_dict(state)
    _learn(first, batches[2:], comm)
    _learn(second, batches[2:], comm)
    return {"first": first.parallel.full_model_state(), "second": second.parallel.full_model_state()}


def refused(comm: Comm, **options: Any) -> str:
    try:
        train(comm, epochs=0, parallel=options)
    except UserError as error:
        return str(error)
    return ""


def _learn(updater: Any, batches: list[Batch], comm: Comm) -> None:
    updater.parallel.model.train()
    for batch in batches:
        updater.learn([batch], number=1, reporter=EpochReporter("train", 1, comm=comm))


def scenarios(comm: Comm, wanted: list[str]) -> dict[str, Any]:
    runs: dict[str, Any] = {
        "float64": lambda: train(comm, train_dtype="float64"),
        "float32": lambda: train(comm),
        "accum": lambda: train(comm, train_dtype="float64", accum=3),
        "fsdp": lambda: train(comm, train_dtype="float64", parallel={"fsdp": comm.size > 1}),
        "fsdp_accum": lambda: train(comm, train_dtype="float64", accum=3, parallel={"fsdp": comm.size > 1}),
        "fsdp_round_trip": lambda: fsdp_round_trip(comm),
        "bf16_hook": lambda: refused(comm, comm_hook="bf16"),
        "fp16_hook": lambda: train(comm, parallel={"comm_hook": "fp16"}),
        "powersgd": lambda: train(comm, parallel={"comm_hook": "powersgd"}),
        "words": lambda: {
            "sum": comm.sum(torch.tensor([1.0, comm.rank])).tolist(),
            "any": comm.any(comm.rank == comm.size - 1),
            "none": comm.any(False),
            "gather": comm.gather([f"from {comm.rank}"]),
        },
    }
    return {name: runs[name]() for name in wanted}


def main(arguments: list[str]) -> None:
    rank, size, directory, wanted = int(arguments[0]), int(arguments[1]), Path(arguments[2]), arguments[3].split(",")
    torch.set_num_threads(1)
    comm: Comm = Solo()
    if size > 1:
        meeting = f"file://{directory}/meeting"
        comm = Distributed(
            torch.device("cpu"), backend="gloo", init_method=meeting, rank=rank, size=size, timeout_s=120
        )
    results = scenarios(comm, wanted)
    if comm.rank == 0:
        torch.save(results, directory / "results.pt")
    comm.close()


if __name__ == "__main__":
    main(sys.argv[1:])
