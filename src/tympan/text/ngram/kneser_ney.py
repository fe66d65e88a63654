"""Interpolated modified Kneser-Ney smoothing (Chen and Goodman 1998), as in KenLM's lmplz.

The steps are those of Heafield et al., "Scalable Modified Kneser-Ney Language Model Estimation" (2013): adjusted
counts, discounts, and, for each order, normalization and interpolation (interpolation.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tympan.errors import UserError
from tympan.text.ngram.corpus import BOS, Corpus
from tympan.text.ngram.counts import OrderCounts, count_orders
from tympan.text.ngram.interpolation import AdjustedCounts, interpolate
from tympan.text.ngram.model import NgramModel
from tympan.text.ngram.scratch import Array, Scratch, index_type

FALLBACK_DISCOUNTS = (0.5, 1.0, 1.5)


@dataclass(frozen=True)
class Estimate:
    model: NgramModel
    discounts: list[Sequence[float]]
    """For each order: the discounts of n-grams counted once, twice, and three times or more."""
    fallback_orders: list[int]
    """Orders that use the fallback, because their counts give no valid discounts."""


def estimate(
    corpus: Corpus,
    *,
    order: int,
    scratch: Scratch,
    prune: Sequence[int] = (),
    fallback: Sequence[float] | None = None,
) -> Estimate:
    """Estimate a model of this order.

    `prune`: n-grams that occur this often or less are removed. There is one threshold per order; the last one is used
    for all higher orders. Unigrams are always kept. `fallback`: discounts for an order whose counts give no valid
    discounts. If it is None, this is an error.
    """
    thresholds = _thresholds(prune, order)
    counts = count_orders(corpus.tokens, order=order, vocab_size=len(corpus.words), scratch=scratch)
    orders = _adjust(counts, thresholds, scratch)
    del counts
    for n, found in enumerate(orders, start=1):
        if not len(found.first):
            raise UserError(
                f"the text has no {n}-gram: its longest sentence has {corpus.longest} token(s), or "
                f"{corpus.longest + 2} with <s> and </s>; use order {n - 1} or less"
            )
    discounts: list[Sequence[float]] = []
    fallback_orders = []
    for n, found in enumerate(orders, start=1):
        values, problem = _discounts(_counts_of_counts(found.adjusted, scratch))
        if problem:
            if fallback is None:
                raise UserError(
                    f"no Kneser-Ney discounts for {n}-grams: {problem}; the text is probably small or artificial. "
                    "Pass --discount_fallback to use 0.5 1 1.5 for this order"
                )
            values = fallback
            fallback_orders.append(n)
        discounts.append(values)
    model = interpolate(orders, discounts=discounts, words=corpus.words, scratch=scratch)
    return Estimate(model, discounts, fallback_orders)


def _thresholds(prune: Sequence[int], order: int) -> list[int]:
    given = list(prune) or [0]
    if len(given) > order or given[0] < 0 or given != sorted(given):
        raise UserError(
            f"--prune {' '.join(map(str, given))}: give at most {order} thresholds, one per order, none smaller than "
            "the one before it, such as 0 0 1"
        )
    return given + given[-1:] * (order - len(given))


def _adjust(counts: list[OrderCounts], thresholds: list[int], scratch: Scratch) -> list[AdjustedCounts]:
    """Compute the adjusted counts of Kneser and Ney: the number of distinct words that precede an n-gram.

    For the highest order, and for n-grams that start with <s>, it is the number of occurrences. N-grams with <s> after
    the first word come from the padding and are removed.
    """
    orders: list[AdjustedCounts] = []
    can_be_suffix, number = counts[0].first != BOS, counts[0].first
    for n, found in enumerate(counts, start=1):
        suffix, first = scratch.growing(index_type(len(found.first))), scratch.growing(np.int32)
        adjusted, is_kept = scratch.growing(np.int64), scratch.growing(np.bool_)
        new_number = scratch.empty(len(found.first), index_type(len(found.first)))
        extends = scratch.empty(len(found.first), np.bool_)
        for block in scratch.blocks(len(found.first)):
            is_valid = can_be_suffix[found.suffix[block]] if n > 1 else found.first[block] >= 0
            new_number[block] = first.size + np.cumsum(is_valid) - 1
            words, raw = found.first[block], found.raw[block]
            extends[block] = is_valid & (words != BOS)
            count = raw
            if found.preceding is not None:
                count = np.where((words == BOS) & (n > 1), raw, found.preceding[block])
            suffix.append(number[found.suffix[block]][is_valid])
            first.append(words[is_valid])
            adjusted.append(count[is_valid])
            is_kept.append((raw > thresholds[n - 1])[is_valid] if n > 1 else is_valid)
        orders.append(AdjustedCounts(suffix.finish(), first.finish(), adjusted.finish(), is_kept.finish()))
        can_be_suffix, number = extends, new_number
    return orders


def _counts_of_counts(adjusted: Array, scratch: Scratch) -> Array:
    """Return the number of n-grams with the counts 0, 1, 2, 3, 4."""
    found = np.zeros(6, np.int64)
    for block in scratch.blocks(len(adjusted)):
        found += np.bincount(np.minimum(adjusted[block], 5), minlength=6)
    return found[:5]


def _discounts(n: Array) -> tuple[Sequence[float], str]:
    """Return the discounts by equation 26 of Chen and Goodman, and a message if the counts give no valid discounts."""
    if not n[1:4].all():
        missing = 1 + int(np.flatnonzero(n[1:4] == 0)[0])
        return (), f"no n-gram of this order has the adjusted count {missing}"
    ratio = n[1] / (n[1] + 2 * n[2])
    values = [float(j - (j + 1) * ratio * n[j + 1] / n[j]) for j in (1, 2, 3)]
    for j, value in enumerate(values, start=1):
        if not 0.0 <= value <= j:
            return (), f"the discount for count {j} would be {value:.3f}"
    return values, ""
