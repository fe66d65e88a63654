"""Batch planning: which utterances share a batch. It depends only on lengths and options, never on ranks or workers.

The batch types and their options have ESPnet2's meaning, and by default (`batch_cut: espnet2`) the batches are equal to
ESPnet2's. `bucket` and `batch_cut: padded` are additions of Tympan. Utterances are sorted by the length of the first
shape (ties keep the order of the file), the sorted list is split into batches, and the batches are ordered.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np

from tympan.config.batches import BatchOptions, BatchType
from tympan.config.option import option_faults
from tympan.data.buckets import plan_buckets
from tympan.data.shapes import Shapes
from tympan.data.table import Ints
from tympan.errors import UserError

logger = logging.getLogger(__name__)

BATCH_TYPES: tuple[str, ...] = get_args(BatchType)


@dataclass(frozen=True)
class BatchPlan:
    """Batches as slices of `rows`: batch i is rows[offsets[i]:offsets[i + 1]]."""

    rows: Ints
    offsets: Ints
    shapes: tuple[Shapes, ...]
    padded: Ints | None = None
    """(batches, shapes): the fixed padded length of each batch and shape. None: pad to the longest utterance."""
    fits_lengths: bool = True
    """Whether the size of a batch depends on the lengths in it."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Ints:
        return np.diff(self.offsets)

    def batch(self, number: int) -> Ints:
        return self.rows[self.offsets[number] : self.offsets[number + 1]]

    def pad_to(self, number: int) -> tuple[int, ...] | None:
        return None if self.padded is None else tuple(int(length) for length in self.padded[number])

    def padded_lengths(self) -> Ints:
        """(batches, shapes): the length to which each batch is padded."""
        if self.padded is not None:
            return self.padded
        columns = [np.maximum.reduceat(shape.lengths[self.rows], self.offsets[:-1]) for shape in self.shapes]
        return np.stack(columns, axis=1)

    def total_lengths(self) -> Ints:
        """(batches, shapes): the sum of the lengths in each batch."""
        columns = [np.add.reduceat(shape.lengths[self.rows], self.offsets[:-1]) for shape in self.shapes]
        return np.stack(columns, axis=1)


def plan_batches(shapes: Sequence[Shapes], options: BatchOptions) -> BatchPlan:
    """Split the utterances into batches. Rows are indices into the arrays of the shapes."""
    if not shapes or len(shapes[0].lengths) == 0:
        raise UserError("there are no utterances to make batches of; the shape file or data file is empty")
    if any(len(shape.lengths) != len(shapes[0].lengths) for shape in shapes):
        raise UserError(
            "the shape files have different numbers of utterances; create them with the same --collect_stats run"
        )
    _check(options)
    shapes = tuple(shapes)
    kind = options.batch_type
    lengths = shapes[0].lengths
    if kind == "bucket":
        buckets = plan_buckets(shapes, options)
        return BatchPlan(buckets.rows, buckets.offsets, shapes, buckets.padded)
    if kind == "unsorted":
        order = np.arange(len(lengths), dtype=np.int64)
        return BatchPlan(order, _cut_evenly(len(order), options), shapes, fits_lengths=False)
    if kind == "sorted":
        descending = options.sort_in_batch == "descending"
        order = np.argsort(-lengths if descending else lengths, kind="stable")
        offsets = _cut_evenly(len(order), options)
        reverse = options.sort_in_batch != options.sort_batch
        arranged = _in_order(order, offsets, reverse_batches=reverse, reverse_within=False)
        return BatchPlan(*arranged, shapes, fits_lengths=False)
    order = np.argsort(lengths, kind="stable")
    sizes = _cut_by_length([shape.lengths[order] for shape in shapes], shapes, options)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    arranged = _in_order(
        order[: offsets[-1]],
        offsets,
        reverse_batches=options.sort_batch == "descending",
        reverse_within=options.sort_in_batch == "descending",
    )
    return BatchPlan(*arranged, shapes)


def _check(options: BatchOptions) -> None:
    """Raise UserError for invalid options that no parser has checked."""
    mistakes = option_faults(options, BatchOptions)
    if options.max_batch_size is not None and options.max_batch_size < options.min_batch_size:
        mistakes.append(f"max_batch_size {options.max_batch_size} is less than min_batch_size {options.min_batch_size}")
    if mistakes:
        raise UserError("\n".join(mistakes))


def _cut_evenly(count: int, options: BatchOptions) -> Ints:
    """Return equal sizes of `batch_size`. The rest is dropped, or spread so that sizes differ by one, as in ESPnet2."""
    number = max(count // options.batch_size, 1)
    if options.drop_last_iter:
        return np.minimum(np.arange(number + 1, dtype=np.int64) * options.batch_size, count)
    return np.arange(number + 1, dtype=np.int64) * count // number


def _cut_by_length(columns: list[Ints], shapes: tuple[Shapes, ...], options: BatchOptions) -> list[int]:
    """Return the batch sizes of `folded`, `length` and `numel`, from the shortest utterances to the longest.

    In ESPnet2, `max_batch_size` is only for the category batch types, and `drop_last_iter` has no effect with `folded`.
    """
    is_espnet2 = options.batch_cut == "espnet2"
    is_folded = options.batch_type == "folded"
    if is_espnet2:
        if options.max_batch_size is not None:
            logger.warning(
                "max_batch_size has no effect with batch_type %s, as in ESPnet2; use --batch_cut padded",
                options.batch_type,
            )
        options = replace(options, max_batch_size=None, drop_last_iter=options.drop_last_iter and not is_folded)
    if is_folded:
        sizes = _folded_sizes(columns, shapes, options)
    else:
        weights = [shape.dim if options.batch_type == "numel" else 1 for shape in shapes]
        costs = [column * weight for column, weight in zip(columns, weights, strict=True)]
        sizes = _bin_sizes(np.sum(costs, axis=0), options) if is_espnet2 else _padded_bin_sizes(costs, options)
    return _spread_small_last(sizes, options, skips_last=is_espnet2 and is_folded)


def _folded_sizes(columns: list[Ints], shapes: tuple[Shapes, ...], options: BatchOptions) -> list[int]:
    """Return sizes of batch_size / (1 + max over shapes of length // fold_length), for the shortest utterance."""
    if len(options.fold_length) != len(shapes):
        raise UserError(
            "batch_type or valid_batch_type folded (the default) needs one fold_length for each of "
            f"{', '.join(shape.name for shape in shapes)}; found {len(options.fold_length)}. Use --batch_type numel "
            "--batch_bins 1000000 (elements per batch), or give usual lengths: --fold_length 80000 (samples; 800 for "
            "frames of features) --fold_length 150 (tokens)"
        )
    factor = np.max([column // fold for column, fold in zip(columns, options.fold_length, strict=True)], axis=0)
    size_at = np.maximum(options.batch_size // (1 + factor), options.min_batch_size)
    if options.max_batch_size is not None:
        size_at = np.minimum(size_at, options.max_batch_size)
    sizes: list[int] = []
    start, count, wanted = 0, len(size_at), size_at.tolist()
    while start < count:
        size = wanted[start]
        if options.drop_last_iter and start + size > count and sizes:
            break
        sizes.append(min(size, count - start))
        start += size
    return sizes


def _bin_sizes(cost: Ints, options: BatchOptions) -> list[int]:
    """End a batch with the utterance whose own cost, times the number of utterances so far, exceeds batch_bins.

    As in ESPnet2, this utterance is part of the batch, and longer texts of other utterances are ignored.
    """
    sizes: list[int] = []
    start, window, count = 0, 64, len(cost)
    while start < count:
        part = cost[start : start + window]
        is_over = part * np.arange(1, len(part) + 1) > options.batch_bins
        is_over[: options.min_batch_size - 1] = False
        size = int(np.argmax(is_over)) + 1
        if not is_over[size - 1]:
            if start + window < count:
                window *= 4
                continue
            if options.drop_last_iter and sizes:
                break
            size = count - start
        sizes.append(size)
        start += size
        window = size + 16
    return sizes


def _padded_bin_sizes(costs: list[Ints], options: BatchOptions) -> list[int]:
    """End a batch with the utterance that makes its padded size exceed batch_bins. It is part of the batch."""
    count = len(costs[0])
    sizes: list[int] = []
    start, window = 0, 64
    while start < count:
        size = _first_over(costs, start, options, window=window)
        if start + size > count:
            if not options.drop_last_iter or not sizes:
                sizes.append(count - start)
            break
        sizes.append(size)
        start += size
        window = size + 16
    return sizes


def _first_over(costs: list[Ints], start: int, options: BatchOptions, *, window: int) -> int:
    """Return the smallest batch size from `start` whose padded cost exceeds the limit, or one beyond the end."""
    smallest = options.min_batch_size
    largest = options.max_batch_size or np.iinfo(np.int64).max
    while True:
        parts = [np.maximum.accumulate(cost[start : start + window]) for cost in costs]
        longest = parts[0] if len(parts) == 1 else np.sum(parts, axis=0)
        padded = longest * np.arange(1, len(longest) + 1)
        # The padded cost increases with the size, so binary search finds the first size over the limit.
        size = max(int(np.searchsorted(padded, options.batch_bins, side="right")) + 1, smallest)
        if size <= len(longest) or size >= largest:
            return min(size, largest)
        if start + window >= len(costs[0]):
            return min(max(size, len(longest) + 1), largest)
        window *= 4


def _spread_small_last(sizes: list[int], options: BatchOptions, *, skips_last: bool) -> list[int]:
    """Distribute the utterances of a last batch smaller than min_batch_size over the batches before it.

    ESPnet2's `folded` starts one batch earlier (`skips_last`), and fails if there are not enough batches.
    """
    if len(sizes) > 1 and sizes[-1] < options.min_batch_size:
        left = sizes.pop()
        first = 2 if skips_last and left < len(sizes) else 1
        for index in range(left):
            sizes[-first - index % len(sizes)] += 1
    return sizes


def _in_order(order: Ints, offsets: Ints, *, reverse_batches: bool, reverse_within: bool) -> tuple[Ints, Ints]:
    """Reverse the order of the batches and the order of utterances within them, as requested."""
    if reverse_batches != reverse_within:
        # Reversing the whole list below also reverses each batch.
        order = _reverse_each(order, offsets)
    if reverse_batches:
        return order[::-1].copy(), (offsets[-1] - offsets[::-1]).copy()
    return order, offsets


def _reverse_each(order: Ints, offsets: Ints) -> Ints:
    sizes = np.diff(offsets)
    batch = np.repeat(np.arange(len(sizes)), sizes)
    place = offsets[batch] + offsets[batch + 1] - 1 - np.arange(offsets[-1])
    reversed_each: Ints = order[place]
    return reversed_each


def describe_plan(plan: BatchPlan, *, rate: float | None = None) -> str:
    """Describe the plan in a few lines. `rate` is the number of steps of the first shape per second."""
    sizes = plan.sizes
    totals, padded = plan.total_lengths(), plan.padded_lengths() * sizes[:, None]
    lines = [
        f"{len(plan):,} batches of {sizes.sum():,} utterances",
        f"utterances per batch: {_spread(sizes)}",
    ]
    dropped = len(plan.shapes[0].lengths) - int(sizes.sum())
    if dropped:
        lines.append(f"dropped by drop_last_iter: {dropped:,} utterances")
    for column, shape in enumerate(plan.shapes):
        length, total = totals[:, column], padded[:, column]
        if not length.any():
            continue  # planned without lengths
        share = 1 - length.sum() / max(total.sum(), 1)
        lines.append(
            f"{shape.name}: {_spread(length)} per batch, padding {share:.1%} (worst batch {_worst(length, total):.1%})"
        )
        if column == 0 and rate:
            lines.append(f"audio: {length.sum() / rate / 3600:.2f} h, {_spread(length / rate, ' s')} per batch")
    if plan.padded is not None:
        lines.append(f"fixed shapes: {len(np.unique(np.column_stack([sizes, plan.padded]), axis=0))}")
    return "\n".join(lines)


def list_batches(plan: BatchPlan, number: int, *, rate: float | None = None) -> str:
    """List the first batches in the order of the plan. Training shuffles them again in each epoch."""
    totals, padded = plan.total_lengths()[:number], plan.padded_lengths()[:number]
    lines = ["batch  utterances  " + "  ".join(f"{shape.name} padded to (padding)" for shape in plan.shapes)]
    for place, (size, total, longest) in enumerate(zip(plan.sizes, totals, padded, strict=False)):
        shares = 1 - total / np.maximum(longest * size, 1)
        columns = [f"{length:,} ({share:.1%})" for length, share in zip(longest, shares, strict=True)]
        seconds = f"  {total[0] / rate:,.1f} s" if rate else ""
        lines.append(f"{place:>5}  {size:>10,}  " + "  ".join(columns) + seconds)
    return "\n".join(lines)


def _spread(values: np.ndarray, unit: str = "") -> str:
    if np.issubdtype(values.dtype, np.integer):
        return f"{values.min():,} to {values.max():,}{unit}, {values.mean():,.1f}{unit} on average"
    return f"{values.min():,.1f} to {values.max():,.1f}{unit}, {values.mean():,.1f}{unit} on average"


def _worst(length: np.ndarray, total: np.ndarray) -> float:
    return float((1 - length / np.maximum(total, 1)).max())
