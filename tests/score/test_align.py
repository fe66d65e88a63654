"""Alignment against exhaustive search, and its tie-breaking."""

from __future__ import annotations

import tracemalloc
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tympan.score.align import Counts, align, count

TOKENS = st.lists(st.sampled_from("abcA"), max_size=7)


def cheapest(ref: list[str], hyp: list[str]) -> int:
    """4 for a substitution, 3 for a gap, by plain recursion."""

    @cache
    def cost(i: int, j: int) -> int:
        if not i or not j:
            return 3 * (i + j)
        change = 0 if ref[i - 1].lower() == hyp[j - 1].lower() else 4
        return min(cost(i - 1, j - 1) + change, cost(i - 1, j) + 3, cost(i, j - 1) + 3)

    return cost(len(ref), len(hyp))


@given(TOKENS, TOKENS)
def test_alignment_is_cheapest_and_complete(ref: list[str], hyp: list[str]) -> None:
    steps = align(ref, hyp)
    counts = count(steps)
    assert 4 * counts.substitutions + 3 * (counts.deletions + counts.insertions) == cheapest(ref, hyp)
    assert [s.ref for s in steps if s.ref is not None] == ref
    assert [s.hyp for s in steps if s.hyp is not None] == hyp


@pytest.mark.parametrize(
    ("ref", "hyp", "kinds"),
    [
        ("one two", "three", "DS"),
        ("three", "one two", "IS"),
        ("a b c d", "b c d e", "DCCCI"),
        ("a b", "", "DD"),
        ("", "a b", "II"),
        ("", "", ""),
    ],
)
def test_ties_go_as_in_sclite(ref: str, hyp: str, kinds: str) -> None:
    assert "".join(step.kind for step in align(ref.split(), hyp.split())) == kinds


def test_an_hour_in_one_utterance_fits_into_memory() -> None:
    ref = [f"w{n % 997}" for n in range(10_000)]
    hyp = ref[:5000] + ref[5010:]
    tracemalloc.start()
    counts = count(align(ref, hyp))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (counts.correct, counts.deletions, counts.errors) == (9990, 10, 10)
    assert peak < 150e6


def test_only_ascii_case_is_folded() -> None:
    assert count(align(["Été"], ["été"])).substitutions == 1
    assert count(align(["YES"], ["yes"])).correct == 1
    assert count(align(["YES"], ["yes"], case_sensitive=True)).substitutions == 1


def test_counts_add_up() -> None:
    total = count(align(["a"], ["b"])) + count(align(["a", "b"], ["a"]))
    assert total == Counts(1, 1, 1, 0, 2, 2)
    assert total.error_rate == pytest.approx(200 / 3)
