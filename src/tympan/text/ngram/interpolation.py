"""From adjusted counts and discounts to probabilities and back-off weights, order by order.

N-grams come in suffix order (see counts.py) and leave in context order (see model.py). For a given context, both orders
sort by the last word: a stable sort by context, done as a counting sort over blocks, is all that it takes.
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
    """The n-grams of one order, in suffix order; `<s>` stands only at the beginning of one."""

    suffix: Array
    """Index of the (n-1)-gram that ends it."""
    first: Array
    """Its first word."""
    adjusted: Array
    is_kept: Array
    """False: pruned. It counts for its context, and then is not written."""


@dataclass(frozen=True)
class _Done:
    """What the next order asks about the n-grams of a finished one, in suffix order."""

    key: Array | None  # suffix and first word, ascending: to find an n-gram; of unigrams the index is the word
    context: Array  # index of the n-gram without its last word, in the order below
    last: Array  # last word
    prob: Array
    position: Array  # place in context order among those kept


def interpolate(
    orders: list[AdjustedCounts], *, discounts: list[Sequence[float]], words: list[str], scratch: Scratch
) -> NgramModel:
    """The model, up to the highest order that pruning left. `orders` is emptied on the way, to free finished arrays."""
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
    """Interpolated with the uniform distribution over all words but <s>, which is never predicted."""
    taken = _taken(counts.adjusted, discounts)
    total, size = counts.adjusted.sum(), len(counts.first)
    prob = (counts.adjusted - taken) / total + taken.sum() / total / (size - 1)
    prob[BOS] = 1.0  # lmplz writes 0 for its logarithm
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
        # What pruned n-grams had goes to the back-off as a whole.
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
    next_place = following  # rewritten by _write_contexts: where the next n-gram of this context goes
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
    """Index, one order below, of each n-gram without its last word."""
    first = counts.first[block]
    if below.key is None:
        return first
    # The context's own suffix is the n-gram without its first and last word: the context of the suffix.
    middle = below.context[counts.suffix[block]].astype(np.int64)
    return find_sorted(below.key, middle << bits | first)


def _write_contexts(
    n: int, total: Array, spare: Array, following: Array, below: _Done, model: NgramModel, scratch: Scratch
) -> Array:
    """Write back-off weights and children of the (n-1)-grams. Gives the weights, in suffix order.

    `following`, how many n-grams follow each context, becomes where the first of them goes.
    """
    first_state = 1 + model.first_entry(n - 1)
    states = slice(first_state, first_state + model.counts[n - 2])
    share = spare
    for block in scratch.blocks(len(share)):
        # A context that nothing follows, such as </s>, leaves all to its suffix.
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
    """A place for each n-gram: the next free one of its context, in the order given."""
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
    """Stable argsort. Value and place in one integer sort many times faster than by reference, where they fit."""
    place_bits = len(values).bit_length()
    if not len(values) or int(values.max()).bit_length() + place_bits > 63:
        return np.argsort(values, kind="stable")
    packed = values.astype(np.int64) << place_bits | np.arange(len(values))
    packed.sort()
    return packed & ((1 << place_bits) - 1)
