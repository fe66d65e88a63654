"""The batch iterator of an epoch: worker processes read and pad the planned batches ahead of time."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from tympan.data.batch import Batch, MeanSize, collate, empty_like
from tympan.data.batch_plan import BatchPlan, describe_plan
from tympan.data.dataset import Utterance, UtteranceDataset
from tympan.data.schedule import BatchSchedule
from tympan.data.seeds import derive_seed
from tympan.data.table import Ints
from tympan.errors import UserError

AFTER_SIGTERM_S = 60


class EpochBatches:
    """The batches of a data directory (`tympan.data.batch.Batches`).

    `build_iter(epoch)` yields this rank's share of each global batch; `build_iter(epoch, step)` starts there.

    What it yields does not depend on `num_workers`. `seed` None (validation) leaves `augment_seed` out.
    A rank may get a batch without utterances: `ids` is empty and every tensor has a first dimension of zero.
    """

    def __init__(
        self,
        dataset: UtteranceDataset,
        plan: BatchPlan,
        *,
        seed: int | None = None,
        shuffle: bool = False,
        shuffle_within_batch: bool = False,
        num_iters_per_epoch: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        num_workers: int = 0,
        pin_memory: bool = False,
        prefetch_factor: int = 4,
        stretch: float = 1.0,
    ) -> None:
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} of {world_size}")
        if plan.padded is not None:
            _require_names(plan, dataset)
        self.dataset = dataset
        self.plan = plan
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.num_workers = num_workers
        self.pin_memory = pin_memory
        self.prefetch_factor = prefetch_factor
        self.stretch = stretch
        """Factor by which speech may become longer than planned (speed perturbation on the fly); for fixed shapes."""
        self.schedule = BatchSchedule(
            plan,
            seed=seed or 0,
            shuffle=shuffle,
            shuffle_within_batch=shuffle_within_batch,
            num_iters_per_epoch=num_iters_per_epoch,
        )

    def build_iter(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        steps = range(start_step, self.num_steps(epoch))
        loader = DataLoader(
            _EpochSteps(self, epoch),
            batch_size=None,
            sampler=steps,
            collate_fn=_as_it_is,
            num_workers=self.num_workers,
            pin_memory=self.pin_memory,
            prefetch_factor=self.prefetch_factor if self.num_workers else None,
            worker_init_fn=_prepare_worker,
        )
        for item in _named_deaths(loader):
            if isinstance(item, _Failure):
                raise UserError(item.message)
            yield item

    def num_steps(self, epoch: int) -> int:
        return self.schedule.num_steps(epoch)

    def batch_ids(self, epoch: int, step: int) -> tuple[str, ...]:
        """Number of utterances in the global batch, over all ranks."""
        return tuple(self.dataset.index.id(int(row)) for row in self.schedule.rows(epoch, step))

    def batch_sizes(self, epoch: int) -> tuple[int, ...]:
        """Number of utterances in each global batch."""
        return tuple(int(size) for size in self.schedule.sizes(epoch))

    @property
    def names(self) -> tuple[str, ...]:
        return self.dataset.names

    @property
    def sample_rate(self) -> int | None:
        return self.dataset.sample_rate

    def describe(self) -> str:
        return describe_plan(self.plan, rate=self.dataset.sample_rate)

    def mean_size(self) -> MeanSize:
        seconds = None
        if self.dataset.sample_rate:
            seconds = float((self.plan.total_lengths()[:, 0] / self.dataset.sample_rate).mean())
        return MeanSize(float(self.plan.sizes.mean()), seconds)

    def examples(self, number: int) -> Batch:
        utterances = [self.utterance(row) for row in range(min(number, len(self.dataset)))]
        return collate(utterances, global_size=len(utterances))

    def lengths(self) -> dict[str, Ints]:
        return {shape.name: shape.lengths for shape in self.plan.shapes}

    def utterance(self, row: int) -> Utterance:
        return self.dataset[row, 1]

    def load(self, epoch: int, step: int) -> Batch:
        """Read this rank's share of one global batch in this process."""
        rows = self.schedule.rows(epoch, step)
        share = rows[self.rank :: self.world_size]
        # A rank without utterances still reads one, for the shapes of the empty tensors.
        utterances = [self.dataset[int(row), epoch] for row in (share if len(share) else rows[:1])]
        seeds = None
        if self.seed is not None:
            seeds = [derive_seed(self.seed, epoch, utterance.id, "augment") for utterance in utterances]
        batch = collate(utterances, global_size=len(rows), pad_to=self._pad_to(epoch, step), augment_seeds=seeds)
        return batch if len(share) else empty_like(batch)

    def _pad_to(self, epoch: int, step: int) -> dict[str, int] | None:
        lengths = self.schedule.pad_to(epoch, step)
        if lengths is None:
            return None
        return {
            shape.name: int(length * self.stretch + 0.999) if place == 0 else length
            for place, (shape, length) in enumerate(zip(self.plan.shapes, lengths, strict=True))
        }


@dataclass(frozen=True)
class _Failure:
    """A UserError in a worker. It is returned, not raised, because torch would wrap an exception in a traceback."""

    message: str


class _EpochSteps(Dataset[Batch | _Failure]):
    """Item i is the batch of step i."""

    def __init__(self, factory: EpochBatches, epoch: int) -> None:
        self.factory = factory
        self.epoch = epoch

    def __getitem__(self, step: int) -> Batch | _Failure:
        try:
            return self.factory.load(self.epoch, step)
        except UserError as error:
            return _Failure(str(error))


def _require_names(plan: BatchPlan, dataset: UtteranceDataset) -> None:
    """Check that every fixed shape belongs to a data name; otherwise tensors would stay unpadded."""
    unknown = [shape.name for shape in plan.shapes if shape.name not in dataset.names]
    if unknown:
        raise UserError(
            f"batch_type bucket: the shape file of '{unknown[0]}' matches none of the data "
            f"({', '.join(dataset.names)}); name the file NAME_shape, such as speech_shape"
        )


def _named_deaths(loader: DataLoader[Batch | _Failure]) -> Iterator[Batch | _Failure]:
    """Yield the batches. If a worker is killed, raise a UserError that says what to do."""
    batches = iter(loader)
    while True:
        try:
            yield next(batches)
        except StopIteration:
            return
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            raise UserError(
                f"a data loader worker exited unexpectedly ({str(error).splitlines()[0].rstrip('. ')}). "
                "Usually memory or /dev/shm ran out: use fewer --num_workers (0 uses none), smaller batches, "
                "or give a container more shared memory (docker run --shm-size 8g)"
            ) from None


def _as_it_is(item: Any) -> Any:
    return item


def _prepare_worker(_worker: int) -> None:
    """Use one thread, and stay alive for a while after SIGTERM and SIGINT.

    Schedulers and terminals send them to every process of a job. A worker that exits immediately would break the
    step after which training saves a checkpoint. The alarm ends a worker that is never shut down properly.
    """
    torch.set_num_threads(1)
    for asked in (signal.SIGTERM, signal.SIGINT):
        signal.signal(asked, lambda number, frame: signal.alarm(AFTER_SIGTERM_S))
