"""Distinct n-grams of a text with their counts, sorted by their last word, then the word before it, and so on.

In this order ("suffix order"), n-grams with the same suffix are adjacent. An n-gram is stored as an integer key: the
index of its suffix, the (n-1)-gram without the first word, shifted left, plus its first word.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from tympan.text.ngram.corpus import BOS, EOS
from tympan.text.ngram.scratch import Array, Scratch, index_type

KEY_BITS = 63


@dataclass(frozen=True)
class OrderCounts:
    """The distinct n-grams of one order, in suffix order."""

    suffix: Array
    """For each n-gram, the index of the (n-1)-gram that is its suffix. Empty for unigrams."""
    first: Array
    """Its first word."""
    raw: Array
    """Number of occurrences."""
    preceding: Array | None
    """Number of distinct words that precede it, including <s>. Unknown for the highest order."""


def count_orders(tokens: Array, *, order: int, vocab_size: int, scratch: Scratch) -> list[OrderCounts]:
    """Count n-grams of all orders (index 0 is order 1). Sentences are padded with <s> at the start."""
    bits = max(1, (vocab_size - 1).bit_length())
    # If an n-gram does not fit into a key, its last words are replaced by the index of that shorter n-gram.
    tails: list[Array] = [np.arange(vocab_size, dtype=np.int64)]
    while len(tails) < order and int(len(tails[-1]) - 1).bit_length() + (order - len(tails)) * bits > KEY_BITS:
        chunks = _keys(tokens, tails, order=len(tails) + 1, bits=bits, scratch=scratch)
        tails.append(sorted_counts(chunks, scratch)[0])
    keys, raw = sorted_counts(_keys(tokens, tails, order=order, bits=bits, scratch=scratch), scratch)
    preceding = None
    found: list[OrderCounts] = []
    for n in range(order, 1, -1):
        if n == len(tails):
            keys = tails.pop()
        suffix, first, shorter = _split_first_word(keys, raw, bits, scratch)
        found.append(OrderCounts(suffix, first, raw, preceding))
        keys, raw, preceding = shorter
    if found:
        for block in scratch.blocks(len(found[-1].suffix)):
            found[-1].suffix[block] = keys[found[-1].suffix[block]]
    found.append(_unigrams(keys, raw, preceding, vocab_size))
    return found[::-1]


def _keys(tokens: Array, tails: list[Array], *, order: int, bits: int, scratch: Scratch) -> Iterator[Array]:
    """Yield the key of the n-gram that ends at each token, one chunk at a time."""
    for chunk in scratch.blocks(len(tokens)):
        reach = min(chunk.start, order - 1)
        words = np.asarray(tokens[chunk.start - reach : chunk.stop])
        size = chunk.stop - chunk.start
        key = words[reach:].astype(np.int64)
        is_over = np.zeros(size, bool)
        for back in range(1, order):
            earlier = np.full(size, EOS, np.int32)
            skip = max(0, back - reach)
            earlier[skip:] = words[max(0, reach - back) : len(words) - back]
            is_over |= earlier == EOS
            earlier[is_over] = BOS
            np.left_shift(key, bits, out=key)
            key |= earlier
            if back < len(tails):
                key = find_sorted(tails[back], key)
        yield key


def find_sorted(haystack: Array, needles: Array) -> Array:
    """Return the index of each needle. Needles are sorted first, because sequential access is several times faster."""
    order = np.argsort(needles)
    found = np.empty(len(needles), np.int64)
    found[order] = np.searchsorted(haystack, needles[order])
    return found


def sorted_counts(chunks: Iterable[Array], scratch: Scratch) -> tuple[Array, Array]:
    """Return distinct keys of all chunks, ascending, and their counts. Each chunk is sorted, then they are merged."""
    runs = []
    for chunk in chunks:
        keys, counts = _distinct(np.sort(chunk), None)
        runs.append((keys, counts))
        if len(runs) > 1:
            runs[-2:] = [(_spilled(k, scratch), _spilled(c, scratch)) for k, c in runs[-2:]]
    return runs[0] if len(runs) == 1 else _merge(runs, scratch)


def _spilled(values: Array, scratch: Scratch) -> Array:
    if isinstance(values, np.memmap):
        return values
    file = scratch.growing(values.dtype)
    file.append(values)
    return file.finish()


def _distinct(keys: Array, weights: Array | None) -> tuple[Array, Array]:
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    if weights is None:
        return keys[starts], np.diff(starts, append=len(keys))
    return keys[starts], np.add.reduceat(weights, starts)


def _merge(runs: list[tuple[Array, Array]], scratch: Scratch) -> tuple[Array, Array]:
    """Merge sorted runs, one range of keys after another. A range has about as many rows as a block."""
    total = sum(len(keys) for keys, _ in runs)
    stride = max(1, scratch.rows // (8 * len(runs)))
    samples = np.sort(np.concatenate([keys[::stride] for keys, _ in runs]))
    pieces = -(-total // scratch.rows)
    limits = np.unique(samples[np.linspace(0, len(samples), pieces, endpoint=False).astype(int)[1:]])
    cuts = [np.concatenate([[0], np.searchsorted(keys, limits), [len(keys)]]) for keys, _ in runs]
    all_keys, all_counts = scratch.growing(np.int64), scratch.growing(np.int64)
    for piece in range(len(limits) + 1):
        slices = [slice(cut[piece], cut[piece + 1]) for cut in cuts]
        keys = np.concatenate([run[0][part] for run, part in zip(runs, slices, strict=True)])
        if not len(keys):
            continue
        counts = np.concatenate([run[1][part] for run, part in zip(runs, slices, strict=True)])
        order = np.argsort(keys)
        merged = _distinct(keys[order], counts[order])
        all_keys.append(merged[0])
        all_counts.append(merged[1])
    return all_keys.finish(), all_counts.finish()


def _split_first_word(
    keys: Array, raw: Array, bits: int, scratch: Scratch
) -> tuple[Array, Array, tuple[Array, Array, Array]]:
    """Split the first word off sorted n-gram keys.

    Returns for each n-gram the index of its suffix and its first word, and for each suffix its key, its number of
    occurrences, and the number of distinct words that precede it.
    """
    suffix, first = scratch.empty(len(keys), index_type(len(keys))), scratch.empty(len(keys), np.int32)
    shorter, shorter_raw, preceding = (scratch.growing(np.int64) for _ in range(3))
    for block in _blocks_of_runs(keys, bits, scratch):
        first[block] = keys[block] & ((1 << bits) - 1)
        rest = keys[block] >> bits
        is_new = np.concatenate([[True], rest[1:] != rest[:-1]])
        suffix[block] = shorter.size + np.cumsum(is_new) - 1
        starts = np.flatnonzero(is_new)
        shorter.append(rest[starts])
        shorter_raw.append(np.add.reduceat(raw[block], starts))
        preceding.append(np.diff(starts, append=len(rest)))
    return suffix, first, (shorter.finish(), shorter_raw.finish(), preceding.finish())


def _blocks_of_runs(keys: Array, bits: int, scratch: Scratch) -> Iterator[slice]:
    """Yield blocks of sorted keys. N-grams that differ only in their first word are always in the same block."""
    start = 0
    while start < len(keys):
        last = int(keys[min(len(keys), start + scratch.rows) - 1])
        stop = int(np.searchsorted(keys, ((last >> bits) + 1) << bits))
        yield slice(start, stop)
        start = stop


def _unigrams(keys: Array, raw: Array, preceding: Array | None, vocab_size: int) -> OrderCounts:
    """Return unigrams for all words, even if no n-gram ends with them (<s>, <unk>), so that index = word."""
    all_raw, all_preceding = np.zeros(vocab_size, np.int64), np.zeros(vocab_size, np.int64)
    all_raw[keys] = raw
    if preceding is not None:
        all_preceding[keys] = preceding
    words = np.arange(vocab_size, dtype=np.int32)
    return OrderCounts(np.zeros_like(words), words, all_raw, None if preceding is None else all_preceding)
