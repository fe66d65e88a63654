"""Compute probabilities and backoff weights from adjusted counts and discounts, one order after the other.

The input is in suffix order (see counts.py), the output in context order (see model.py). For a given context, both are
sorted by the last word. So a stable sort by context is enough. It is done as a counting sort over blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tympan.text.ngram.corpus import BOS
from tympan.text.ngram.counts import find_sorted
from tympan.text.ngram.model import NgramModel
from tympan.text.ngram.scratch import Array, Scratch, index_type


@dataclass(frozen=True)
class AdjustedCounts:
    """The n-grams of one order, in suffix order. `<s>` can only be the first word of an n-gram."""

    suffix: Array
    """Index of the (n-1)-gram that is its suffix."""
    first: Array
    """Its first word."""
    adjusted: Array
    is_kept: Array
    """False: the n-gram is pruned. It is included in the counts of its context, but not written."""


@dataclass(frozen=True)
class _Done:
    """Data about the n-grams of a finished order that the next order needs, in suffix order."""

    key: Array | None  # suffix and first word, ascending, to look up an n-gram; None for unigrams: index = word
    context: Array  # index of the n-gram without its last word, in the order below
    last: Array  # last word
    prob: Array
    position: Array  # index in context order among the n-grams that are kept


def interpolate(
    orders: list[AdjustedCounts], *, discounts: list[Sequence[float]], words: list[str], scratch: Scratch
) -> NgramModel:
    """Build the model, up to the highest order with n-grams left after pruning. `orders` is emptied to free memory."""
    counts = [count for found in orders if (count := int(np.count_nonzero(found.is_kept)))]
    entries, states = sum(counts), 1 + sum(counts[:-1])
    model = NgramModel(
        words=words,
        counts=counts,
        word=scratch.empty(entries, np.int32),
        log_prob=scratch.empty(entries, np.float32),
        backoff=scratch.zeros(states, np.float32),
        suffix=scratch.zeros(entries, index_type(entries)),
        children=scratch.zeros(states + 1, index_type(entries)),
    )
    model.children[-1] = entries
    below = _unigrams(orders.pop(0), discounts[0], model)
    for n in range(2, len(counts) + 1):
        below = _next_order(orders.pop(0), n, discounts[n - 1], below, model, scratch)
    return model


def _unigrams(counts: AdjustedCounts, discounts: Sequence[float], model: NgramModel) -> _Done:
    """Interpolate unigrams with the uniform distribution over all words except <s>, which is never predicted."""
    taken = _taken(counts.adjusted, discounts)
    total, size = counts.adjusted.sum(), len(counts.first)
    prob = (counts.adjusted - taken) / total + taken.sum() / total / (size - 1)
    prob[BOS] = 1.0  # lmplz writes a log probability of 0
    model.word[:size] = counts.first
    model.log_prob[:size] = np.log10(prob)
    return _Done(None, np.zeros_like(counts.first), counts.first, prob, counts.first)


def _next_order(
    counts: AdjustedCounts, n: int, discounts: Sequence[float], below: _Done, model: NgramModel, scratch: Scratch
) -> _Done:
    size = len(counts.first)
    bits = max(1, (len(model.words) - 1).bit_length())
    context = scratch.empty(size, index_type(len(below.last)))
    total = scratch.zeros(len(below.last), np.float64)
    spare = scratch.zeros(len(below.last), np.float64)
    following = scratch.zeros(len(below.last), index_type(size))
    for block in scratch.blocks(size):
        found = _contexts(counts, block, below, bits)
        context[block] = found
        adjusted, is_kept = counts.adjusted[block], counts.is_kept[block]
        sort = _stable_order(found)
        starts = _run_starts(found[sort])
        contexts = found[sort[starts]]
        # The probability of pruned n-grams goes to the backoff weight.
        taken = np.where(is_kept, _taken(adjusted, discounts), adjusted)
        total[contexts] += np.add.reduceat(adjusted[sort], starts)
        spare[contexts] += np.add.reduceat(taken[sort], starts)
        following[contexts] += np.add.reduceat(is_kept[sort].astype(np.int64), starts)
    share = _write_contexts(n, total, spare, following, below, model, scratch)

    first_entry, first_suffix_state = model.first_entry(n), 1 + model.first_entry(n - 1)
    key = scratch.empty(size, np.int64)
    done = _Done(
        key=key,
        context=context,
        last=scratch.empty(size, np.int32),
        prob=scratch.empty(size, np.float32),
        position=scratch.empty(size, index_type(size)),
    )
    next_place = following  # rewritten by _write_contexts: index of the next n-gram of this context
    for block in scratch.blocks(size):
        found, suffix, is_kept = context[block], counts.suffix[block], counts.is_kept[block]
        adjusted = counts.adjusted[block]
        own = (adjusted - _taken(adjusted, discounts)) / total[found]
        prob = own + share[found] * below.prob[suffix]
        last = below.last[suffix]
        key[block] = suffix.astype(np.int64) << bits | counts.first[block]
        done.prob[block], done.last[block] = prob, last

        kept = np.flatnonzero(is_kept)
        place = _places(found[kept], next_place)
        position = np.full(len(found), -1, np.int64)
        position[kept] = place
        done.position[block] = position
        place += first_entry
        model.word[place] = last[kept]
        model.log_prob[place] = np.log10(prob[kept])
        model.suffix[place] = first_suffix_state + below.position[suffix[kept]]
    return done


def _contexts(counts: AdjustedCounts, block: slice, below: _Done, bits: int) -> Array:
    """Return the index, in the next lower order, of each n-gram without its last word."""
    first = counts.first[block]
    if below.key is None:
        return first
    # The suffix of the context is the n-gram without its first and last word, which is the context of the suffix.
    middle = below.context[counts.suffix[block]].astype(np.int64)
    return find_sorted(below.key, middle << bits | first)


def _write_contexts(
    n: int, total: Array, spare: Array, following: Array, below: _Done, model: NgramModel, scratch: Scratch
) -> Array:
    """Write backoff weights and children of the (n-1)-grams. Returns the weights, in suffix order.

    `following`, the number of n-grams that follow each context, is replaced by the index of the first of them.
    """
    first_state = 1 + model.first_entry(n - 1)
    states = slice(first_state, first_state + model.counts[n - 2])
    share = spare
    for block in scratch.blocks(len(share)):
        # A context without continuations, such as </s>, backs off to its suffix with weight 1.
        np.divide(spare[block], total[block], out=share[block], where=total[block] > 0)
        share[block][total[block] == 0] = 1.0
        position = below.position[block]
        is_kept = position >= 0
        state = first_state + position[is_kept]
        model.backoff[state] = np.log10(share[block][is_kept])
        model.children[state] = following[block][is_kept]
    sizes = model.children[states]
    starts = np.cumsum(sizes) - sizes
    model.children[states] = model.first_entry(n) + starts
    for block in scratch.blocks(len(share)):
        following[block] = starts[below.position[block]]
    return share


def _places(contexts: Array, next_place: Array) -> Array:
    """Return an index for each n-gram: the next free one of its context, in the order given."""
    sort = _stable_order(contexts)
    starts = _run_starts(contexts[sort])
    lengths = np.diff(starts, append=len(sort))
    rank = np.arange(len(sort)) - np.repeat(starts, lengths)
    place = np.empty(len(sort), np.int64)
    place[sort] = next_place[contexts[sort]] + rank
    next_place[contexts[sort[starts]]] += lengths.astype(next_place.dtype)
    return place


def _taken(adjusted: Array, discounts: Sequence[float]) -> Array:
    return np.array([0.0, *discounts])[np.minimum(adjusted, 3)]


def _run_starts(values: Array) -> Array:
    return np.flatnonzero(np.concatenate([np.ones(min(1, len(values)), bool), values[1:] != values[:-1]]))


def _stable_order(values: Array) -> Array:
    """Stable argsort. If value and index fit into one integer, sorting these is many times faster than argsort."""
    place_bits = len(values).bit_length()
    if not len(values) or int(values.max()).bit_length() + place_bits > 63:
        return np.argsort(values, kind="stable")
    packed = values.astype(np.int64) << place_bits | np.arange(len(values))
    packed.sort()
    return packed & ((1 << place_bits) - 1)
