"""Batch plans compared with slow references, and properties of every plan."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tympan.config import parse_args
from tympan.config.batches import BatchOptions
from tympan.data.batch_plan import BATCH_TYPES, BatchPlan, plan_batches
from tympan.data.schedule import BatchSchedule
from tympan.data.shapes import Shapes
from tympan.errors import UserError

FOLDS = (200, 15)
GOLDEN = json.loads((Path(__file__).parent / "golden_batches.json").read_text(encoding="utf-8"))


def make_shapes(speech: list[int], text: list[int], dim: int = 1) -> list[Shapes]:
    return [
        Shapes("speech", np.array(speech, dtype=np.int64), dim),
        Shapes("text", np.array(text, dtype=np.int64)),
    ]


def batches_of(plan: BatchPlan) -> list[list[int]]:
    return [plan.batch(number).tolist() for number in range(len(plan))]


def slow_bins(shapes: list[Shapes], options: BatchOptions, *, weights: list[int]) -> list[list[int]]:
    """One utterance at a time. ESPnet2 counts by the current utterance, `padded` by the longest of each shape."""
    is_padded = options.batch_cut == "padded"
    order = sorted(range(len(shapes[0].lengths)), key=lambda row: shapes[0].lengths[row])
    batches: list[list[int]] = []
    current: list[int] = []
    for row in order:
        current.append(row)
        counted = current if is_padded else [row]
        cost = sum(len(current) * w * max(s.lengths[r] for r in counted) for s, w in zip(shapes, weights, strict=True))
        full = is_padded and options.max_batch_size is not None and len(current) == options.max_batch_size
        if (cost > options.batch_bins and len(current) >= options.min_batch_size) or full:
            batches.append(current)
            current = []
    if current and not (options.drop_last_iter and batches):
        batches.append(current)
    return slow_arrange(batches, options)


def slow_folded(shapes: list[Shapes], options: BatchOptions) -> list[list[int]]:
    is_padded = options.batch_cut == "padded"
    order = sorted(range(len(shapes[0].lengths)), key=lambda row: shapes[0].lengths[row])
    batches: list[list[int]] = []
    while order:
        factor = max(s.lengths[order[0]] // fold for s, fold in zip(shapes, options.fold_length, strict=True))
        size = max(options.min_batch_size, options.batch_size // (1 + int(factor)))
        if options.max_batch_size is not None and is_padded:
            size = min(size, options.max_batch_size)
        if options.drop_last_iter and is_padded and size > len(order) and batches:
            break
        batches.append(order[:size])
        order = order[size:]
    return slow_arrange(batches, options, first=1 if is_padded else 2)


def slow_arrange(batches: list[list[int]], options: BatchOptions, *, first: int = 1) -> list[list[int]]:
    sizes = [len(batch) for batch in batches]
    rows = [row for batch in batches for row in batch]
    if len(sizes) > 1 and sizes[-1] < options.min_batch_size:
        left = sizes.pop()
        for index in range(left):
            sizes[-(first if left < len(sizes) else 1) - index % len(sizes)] += 1
    ends = np.cumsum(sizes).tolist()
    arranged = [rows[end - size : end] for size, end in zip(sizes, ends, strict=True)]
    if options.sort_in_batch == "descending":
        arranged = [batch[::-1] for batch in arranged]
    return arranged[::-1] if options.sort_batch == "descending" else arranged


lengths = st.integers(min_value=1, max_value=900)
corpora = st.lists(st.tuples(lengths, st.integers(min_value=0, max_value=60)), min_size=1, max_size=120)
orders = st.sampled_from(["ascending", "descending"])
options_of = st.builds(
    BatchOptions,
    batch_type=st.sampled_from(BATCH_TYPES),
    batch_size=st.integers(1, 12),
    batch_bins=st.integers(1, 6000),
    batch_cut=st.sampled_from(["espnet2", "padded"]),
    fold_length=st.just(FOLDS),
    min_batch_size=st.integers(1, 3),
    max_batch_size=st.one_of(st.none(), st.integers(3, 9)),
    sort_in_batch=orders,
    sort_batch=orders,
    drop_last_iter=st.booleans(),
    num_buckets=st.integers(1, 5),
)


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["options"]["batch_type"])
def test_batches_are_those_of_espnet2(case: dict[str, Any]) -> None:
    """The expected batches were written by benchmarks/peer_batches.py with the samplers of espnet==202511."""
    shapes = [
        Shapes(name, np.array(case[name]), dim) for name, dim in zip(("speech", "text"), case["dims"], strict=True)
    ]
    assert batches_of(plan_batches(shapes, BatchOptions(**case["options"]))) == case["batches"]


def test_a_cut_of_our_own_keeps_the_padded_size() -> None:
    """The second text is long, but ESPnet2 ignores this at the third utterance."""
    shapes = make_shapes([10, 11, 12, 13], [1, 40, 1, 1])
    options = BatchOptions(batch_type="length", batch_bins=80, sort_batch="ascending", sort_in_batch="ascending")
    assert batches_of(plan_batches(shapes, options)) == [[0, 1], [2, 3]]
    shapes = make_shapes([10, 11, 12, 13], [40, 1, 1, 1])
    assert batches_of(plan_batches(shapes, options)) == [[0, 1, 2, 3]]
    padded = dataclasses.replace(options, batch_cut="padded")
    assert batches_of(plan_batches(shapes, padded)) == [[0, 1], [2, 3]]


def test_an_option_that_espnet2_ignores_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    options = BatchOptions(batch_type="numel", batch_bins=1000, max_batch_size=2)
    with caplog.at_level(logging.WARNING):
        assert len(plan_batches(make_shapes([1] * 6, [1] * 6), options)) == 1
    assert "max_batch_size has no effect with batch_type numel, as in ESPnet2; use --batch_cut padded" in caplog.text
    assert len(plan_batches(make_shapes([1] * 6, [1] * 6), dataclasses.replace(options, batch_cut="padded"))) == 3


@settings(max_examples=300, deadline=None)
@given(corpus=corpora, options=options_of)
def test_every_utterance_exactly_once(corpus: list[tuple[int, int]], options: BatchOptions) -> None:
    plan = plan_batches(make_shapes(*map(list, zip(*corpus, strict=True))), options)
    rows = [row for batch in batches_of(plan) for row in batch]
    assert len(set(rows)) == len(rows)
    if not options.drop_last_iter:
        assert sorted(rows) == list(range(len(corpus)))
    assert plan.sizes.min() >= 1


@settings(max_examples=300, deadline=None)
@given(corpus=corpora, options=options_of, dim=st.integers(1, 3))
def test_plans_equal_the_slow_ones(corpus: list[tuple[int, int]], options: BatchOptions, dim: int) -> None:
    shapes = make_shapes(*map(list, zip(*corpus, strict=True)), dim=dim)
    references: dict[str, Callable[[BatchOptions], list[list[int]]]] = {
        "length": lambda o: slow_bins(shapes, o, weights=[1, 1]),
        "numel": lambda o: slow_bins(shapes, o, weights=[dim, 1]),
        "folded": lambda o: slow_folded(shapes, o),
    }
    for kind, reference in references.items():
        chosen = dataclasses.replace(options, batch_type=kind)
        assert batches_of(plan_batches(shapes, chosen)) == reference(chosen)


@settings(max_examples=200, deadline=None)
@given(corpus=corpora, options=options_of, dim=st.integers(1, 3))
def test_buckets_have_few_shapes_and_keep_the_limit(
    corpus: list[tuple[int, int]], options: BatchOptions, dim: int
) -> None:
    options = dataclasses.replace(options, batch_type="bucket")
    plan = plan_batches(make_shapes(*map(list, zip(*corpus, strict=True)), dim=dim), options)
    assert plan.padded is not None
    shapes = {(int(size), *map(int, padded)) for size, padded in zip(plan.sizes, plan.padded, strict=True)}
    # One more than the number of buckets, because the very last batch may be smaller.
    assert len(shapes) <= options.num_buckets + 1
    for number in range(len(plan)):
        speech, text = plan.padded[number]
        rows = plan.batch(number)
        assert plan.shapes[0].lengths[rows].max() <= speech
        assert plan.shapes[1].lengths[rows].max() <= text
        small = options.min_batch_size if options.max_batch_size is None else 1
        assert len(rows) * (speech * dim + text) <= options.batch_bins or len(rows) <= max(
            small, options.min_batch_size
        )
        if options.max_batch_size is not None:
            assert len(rows) <= options.max_batch_size


def test_buckets_waste_less_than_one_shape() -> None:
    rng = np.random.default_rng(0)
    speech = rng.gamma(4, 30_000, 5000).astype(int).clip(8000, 400_000)
    shapes = make_shapes(speech.tolist(), (speech // 4000).tolist())

    def padding(number: int) -> float:
        plan = plan_batches(shapes, BatchOptions(batch_type="bucket", batch_bins=4_000_000, num_buckets=number))
        padded = (plan.padded_lengths()[:, 0] * plan.sizes).sum()
        return float(1 - speech.sum() / padded)

    assert padding(8) < 0.14 < 0.4 < padding(1)


def test_unsorted_and_sorted_split_evenly() -> None:
    shapes = make_shapes([5, 1, 4, 2, 3, 9, 8, 7, 6, 10, 11], [1] * 11)
    unsorted = plan_batches(shapes, BatchOptions(batch_type="unsorted", batch_size=4))
    assert batches_of(unsorted) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9, 10]]
    dropped = plan_batches(shapes, BatchOptions(batch_type="unsorted", batch_size=4, drop_last_iter=True))
    assert batches_of(dropped) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    ordered = plan_batches(shapes, BatchOptions(batch_type="sorted", batch_size=4, sort_batch="ascending"))
    assert batches_of(ordered) == [[8, 0, 2, 4, 3, 1], [10, 9, 5, 6, 7]]


def test_a_bin_batch_is_closed_by_the_utterance_that_exceeds_it() -> None:
    shapes = [Shapes("speech", np.array([10] * 7))]
    plan = plan_batches(shapes, BatchOptions(batch_type="length", batch_bins=20, sort_batch="ascending"))
    assert plan.sizes.tolist() == [3, 3, 1]


def test_espnet1_counts_are_mapped() -> None:
    for count, batch_type in (("seq", "folded"), ("bin", "numel"), ("frame", "length")):
        assert parse_args(BatchOptions, ["--batch_type", count], prog="test").batch_type == batch_type


def test_mistakes_are_told_together() -> None:
    options = BatchOptions(batch_type="fold", batch_size=0, sort_batch="up", min_batch_size=5, max_batch_size=2)
    with pytest.raises(UserError) as caught:
        plan_batches(make_shapes([1], [1]), options)
    message = str(caught.value)
    for part in ("batch_type", "batch_size must be at least 1", "sort_batch", "max_batch_size 2"):
        assert part in message
    with pytest.raises(UserError, match=r"each of speech, text; found 1\. Use --batch_type numel --batch_bins"):
        plan_batches(make_shapes([1], [1]), BatchOptions(batch_type="folded", fold_length=(100,)))
    with pytest.raises(UserError, match="no utterances"):
        plan_batches([], BatchOptions())


@settings(max_examples=100, deadline=None)
@given(count=st.integers(1, 40), steps=st.integers(1, 100), epoch=st.integers(1, 6))
def test_windows_over_reshuffled_passes(count: int, steps: int, epoch: int) -> None:
    """Concatenated epochs of num_iters_per_epoch steps are equal to the concatenated passes."""
    plan = plan_batches([Shapes("speech", np.arange(count) + 1)], BatchOptions(batch_type="unsorted", batch_size=1))
    schedule = BatchSchedule(plan, seed=7, shuffle=True, num_iters_per_epoch=steps)
    whole = BatchSchedule(plan, seed=7, shuffle=True)
    passes = [
        whole.rows(number, place).tolist() for number in range(1, epoch * steps // count + 2) for place in range(count)
    ]
    seen = [schedule.rows(e, s).tolist() for e in range(1, epoch + 1) for s in range(steps)]
    assert seen == passes[: epoch * steps]
    assert schedule.sizes(epoch).tolist() == [1] * steps


def test_an_order_is_its_own_for_each_epoch_and_seed() -> None:
    plan = plan_batches([Shapes("speech", np.arange(50) + 1)], BatchOptions(batch_type="unsorted", batch_size=2))

    def order(seed: int, epoch: int) -> list[list[int]]:
        schedule = BatchSchedule(plan, seed=seed, shuffle=True)
        return [schedule.rows(epoch, step).tolist() for step in range(schedule.num_steps(epoch))]

    assert order(0, 1) == order(0, 1)
    assert order(0, 1) != order(0, 2) != order(1, 2)
    assert sorted(order(0, 1)) == sorted(order(0, 2)) == sorted(batches_of(plan))


def test_shuffling_within_batches_deals_all_utterances_anew() -> None:
    plan = plan_batches([Shapes("speech", np.arange(50) + 1)], BatchOptions(batch_type="unsorted", batch_size=8))
    schedule = BatchSchedule(plan, seed=0, shuffle=True, shuffle_within_batch=True)
    dealt = [schedule.rows(3, step).tolist() for step in range(schedule.num_steps(3))]
    assert sorted(row for batch in dealt for row in batch) == list(range(50))
    assert sorted(map(len, dealt)) == sorted(plan.sizes.tolist())
    assert schedule.sizes(3).tolist() == [len(batch) for batch in dealt]
    assert dealt != [BatchSchedule(plan, seed=0, shuffle=True).rows(3, step).tolist() for step in range(len(dealt))]


def test_shuffling_within_batches_needs_a_type_without_limits() -> None:
    plan = plan_batches([Shapes("speech", np.arange(50) + 1)], BatchOptions(batch_type="length", batch_bins=100))
    with pytest.raises(UserError, match="shuffle_within_batch"):
        BatchSchedule(plan, shuffle_within_batch=True)
