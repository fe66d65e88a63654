"""Batch type `bucket`: a few fixed padded shapes, for devices that compile a graph for each shape.

Boundaries are chosen to minimize padding. The batches of a bucket have a fixed number of utterances. Utterances that do
not fill a batch move to the next longer bucket, so only the very last batch can be smaller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tympan.config.batches import BatchOptions
from tympan.data.shapes import Shapes
from tympan.data.table import Ints

_CANDIDATES = 128
"""Candidates for boundaries are this many quantiles of the lengths, and as many equidistant lengths."""
_USUAL = 0.97
_TEXT_MULTIPLE = 8
_SIZE_MULTIPLE = 8
"""Larger batch sizes are multiples of this, so that 1, 2, 4 or 8 ranks get equal parts."""


@dataclass(frozen=True)
class Buckets:
    rows: Ints
    offsets: Ints
    padded: Ints
    """(batches, shapes)"""


def plan_buckets(shapes: Sequence[Shapes], options: BatchOptions) -> Buckets:
    """Plan batches whose padded cost (as in batch type `numel`) does not exceed batch_bins."""
    limits = _boundaries(np.sort(shapes[0].lengths), options.num_buckets)
    padded = _padded_shapes(shapes, limits)
    fits = [np.searchsorted(padded[:, column], shape.lengths) for column, shape in enumerate(shapes)]
    bucket_of = np.max(fits, axis=0)
    order = np.lexsort((shapes[0].lengths, bucket_of))
    cost = (padded * np.array([shape.dim for shape in shapes])).sum(axis=1)
    capacity = _capacities(cost, options)
    counts = _promote(np.bincount(bucket_of, minlength=len(limits)), capacity)

    sizes, kind = [], []
    for bucket, count in enumerate(counts):
        full, rest = divmod(int(count), int(capacity[bucket]))
        sizes += [int(capacity[bucket])] * full
        kind += [bucket] * full
        if rest and not (options.drop_last_iter and sizes):
            sizes.append(rest)
            kind.append(bucket)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return Buckets(order[: offsets[-1]], offsets, padded[kind])


def _boundaries(lengths: Ints, number: int) -> Ints:
    """Return at most `number` upper limits of the sorted `lengths` with minimal padding, by dynamic programming."""
    even = np.linspace(0, len(lengths), _CANDIDATES + 1)[1:].astype(np.int64) - 1
    # Quantiles are sparse where long utterances are rare, so add equidistant lengths.
    spaced = np.searchsorted(lengths, np.linspace(lengths[0], lengths[-1], _CANDIDATES))
    limits = np.unique(lengths[np.concatenate([even, spaced])]).astype(np.int64)
    # All utterances up to a limit, including ties, belong to its bucket.
    upto = np.searchsorted(lengths, limits, side="right")
    below = np.concatenate([[0], upto])
    # area[i, j]: padded length of the utterances between candidate i (exclusive) and j, padded to limit j.
    area = (upto[None, :] - below[:, None]) * limits[None, :]
    area = np.where(upto[None, :] > below[:, None], area, np.iinfo(np.int64).max // 4)
    best: NDArray[np.int64] = area[0].copy()
    back: list[Ints] = []
    for _ in range(min(number, len(limits)) - 1):
        total = best[:, None] + area[1:, :]
        previous = np.argmin(total, axis=0)
        best = np.minimum(area[0], total[previous, np.arange(len(limits))])
        back.append(np.where(best < area[0], previous, -1))
    return _trace(limits, back)


def _trace(limits: Ints, back: list[Ints]) -> Ints:
    chosen = [len(limits) - 1]
    for previous in reversed(back):
        place = int(previous[chosen[-1]])
        if place < 0:
            break
        chosen.append(place)
    return limits[chosen[::-1]]


def _padded_shapes(shapes: Sequence[Shapes], limits: Ints) -> Ints:
    """Return (buckets, shapes): the limits of the first shape, and for other shapes a length that most do not exceed.

    The few utterances with a longer text go to a later bucket. Otherwise one of them would make all padded texts of its
    bucket long.
    """
    bucket_of = np.searchsorted(limits, shapes[0].lengths)
    order = np.argsort(bucket_of, kind="stable")
    edges = np.searchsorted(bucket_of[order], np.arange(len(limits) + 1))
    columns = [limits]
    for shape in shapes[1:]:
        lengths = shape.lengths[order]
        usual = [np.quantile(lengths[a:b], _USUAL) if a < b else 0.0 for a, b in pairwise(edges)]
        longest = np.maximum.accumulate(np.ceil(usual).astype(np.int64))
        longest[-1] = shape.lengths.max()
        columns.append(-(-longest // _TEXT_MULTIPLE) * _TEXT_MULTIPLE)
    return np.stack(columns, axis=1)


def _capacities(cost: Ints, options: BatchOptions) -> Ints:
    capacity: Ints = np.maximum(options.batch_bins // np.maximum(cost, 1), 1)
    capacity = np.where(capacity >= _SIZE_MULTIPLE, capacity // _SIZE_MULTIPLE * _SIZE_MULTIPLE, capacity)
    capacity = np.maximum(capacity, options.min_batch_size)
    return capacity if options.max_batch_size is None else np.minimum(capacity, options.max_batch_size)


def _promote(counts: Ints, capacity: Ints) -> Ints:
    """Move utterances that do not fill a batch to the next bucket."""
    counts = counts.copy()
    for bucket in range(len(counts) - 1):
        rest = counts[bucket] % capacity[bucket]
        counts[bucket] -= rest
        counts[bucket + 1] += rest
    return counts
