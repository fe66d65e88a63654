"""The order of batches: a pure function of (seed, epoch), so that any step can be reached directly."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tympan.data.batch_plan import BatchPlan
from tympan.data.seeds import rng_for
from tympan.data.table import Ints
from tympan.errors import UserError


class BatchSchedule:
    """Epochs count from 1.

    Without `num_iters_per_epoch` an epoch is one pass over the plan, shuffled per epoch if `shuffle`. With it,
    epoch e is the e-th window of that many steps over consecutive passes, each shuffled differently, as in
    ESPnet2.
    `shuffle_within_batch` redistributes the utterances of a pass over batches of the planned sizes.
    """

    def __init__(
        self,
        plan: BatchPlan,
        *,
        seed: int = 0,
        shuffle: bool = False,
        shuffle_within_batch: bool = False,
        num_iters_per_epoch: int | None = None,
    ) -> None:
        if num_iters_per_epoch is not None and num_iters_per_epoch < 1:
            raise UserError(f"num_iters_per_epoch must be at least 1, found {num_iters_per_epoch}")
        if shuffle_within_batch and plan.fits_lengths:
            raise UserError(
                "shuffle_within_batch mixes utterances of all lengths, so it works only with batch_type unsorted "
                "and sorted, "
                "where the size of a batch does not depend on lengths"
            )
        self.plan = plan
        self.seed = seed
        self.shuffle = shuffle
        self.shuffle_within_batch = shuffle_within_batch
        self.num_iters_per_epoch = num_iters_per_epoch
        self._orders: dict[int, Ints] = {}
        self._deals: dict[int, Ints] = {}

    def num_steps(self, epoch: int) -> int:
        _require_epoch(epoch)
        return len(self.plan) if self.num_iters_per_epoch is None else self.num_iters_per_epoch

    def rows(self, epoch: int, step: int) -> Ints:
        """Return the utterances of a global batch. Steps count from 0."""
        passed, place = self._locate(epoch, step)
        number = int(self._order(passed)[place])
        if not self.shuffle_within_batch:
            return self.plan.batch(number)
        return self._dealt(passed)[self.plan.offsets[number] : self.plan.offsets[number + 1]]

    def pad_to(self, epoch: int, step: int) -> tuple[int, ...] | None:
        passed, place = self._locate(epoch, step)
        return self.plan.pad_to(int(self._order(passed)[place]))

    def sizes(self, epoch: int) -> Ints:
        """Return the number of utterances in each global batch of an epoch, in order."""
        steps = [self._locate(epoch, 0), self._locate(epoch, self.num_steps(epoch) - 1)]
        (first, begin), (last, end) = steps
        numbers = np.concatenate([self._order(passed) for passed in range(first, last + 1)])
        sizes: Ints = self.plan.sizes[numbers[begin : (last - first) * len(self.plan) + end + 1]]
        return sizes

    def _locate(self, epoch: int, step: int) -> tuple[int, int]:
        """Return the pass over the data (from 1) and the position in it."""
        if not 0 <= step < self.num_steps(epoch):
            raise IndexError(f"step {step} of epoch {epoch}: there are {self.num_steps(epoch)}")
        if self.num_iters_per_epoch is None:
            return epoch, step
        passed, place = divmod((epoch - 1) * self.num_iters_per_epoch + step, len(self.plan))
        return passed + 1, place

    def _order(self, passed: int) -> Ints:
        return _remembered(self._orders, passed, self._shuffled_order)

    def _dealt(self, passed: int) -> Ints:
        return _remembered(self._deals, passed, self._shuffled_rows)

    def _shuffled_order(self, passed: int) -> Ints:
        if not self.shuffle:
            return np.arange(len(self.plan), dtype=np.int64)
        return rng_for(self.seed, passed, "order of batches").permutation(len(self.plan)).astype(np.int64)

    def _shuffled_rows(self, passed: int) -> Ints:
        return rng_for(self.seed, passed, "order of utterances").permutation(self.plan.rows)


def _remembered(known: dict[int, Ints], passed: int, make: Callable[[int], Ints]) -> Ints:
    """Cache a few passes, because consecutive steps use the same pass."""
    if passed not in known:
        if len(known) >= 4:
            known.pop(min(known, key=lambda other: -abs(other - passed)))
        known[passed] = make(passed)
    return known[passed]


def _require_epoch(epoch: int) -> None:
    if epoch < 1:
        raise ValueError(f"epochs count from 1, found {epoch}")
