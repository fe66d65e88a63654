"""An n-gram model stored in flat arrays: a trie of contexts whose nodes are integers.

Entry e is one n-gram. Entries are sorted by order, then by context, then by word, so that the words which may follow a
context are adjacent. State 0 is the empty context. State e + 1 is the n-gram of entry e as a context, for all orders
except the highest. Entries `children[s]` to `children[s + 1] - 1` extend state s.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tympan.text.ngram.scratch import Array


@dataclass(frozen=True)
class NgramModel:
    """Log10 probabilities and backoff weights of all n-grams (E entries, S states)."""

    words: list[str]
    counts: list[int]
    """Number of entries of each order."""
    word: Array  # (E,) int32: the last word of each n-gram
    log_prob: Array  # (E,) float32
    backoff: Array  # (S,) float32
    suffix: Array  # (E,) int: state of the longest proper suffix that is in the model
    children: Array  # (S + 1,) int

    @property
    def order(self) -> int:
        return len(self.counts)

    @property
    def states(self) -> int:
        return len(self.backoff)

    def first_entry(self, order: int) -> int:
        """Return the index of the first n-gram of this order."""
        return sum(self.counts[: order - 1])

    def contexts(self, entries: Array) -> Array:
        """Return the state that each of these entries extends."""
        # Use the same dtype, or the whole array would be converted in every call.
        return np.searchsorted(self.children, entries.astype(self.children.dtype), side="right") - 1

    def ngrams(self, first: int, last: int) -> Array:
        """Return the words of entries first..last-1, which must have the same order: (entries, order) word ids."""
        entries = np.arange(first, last)
        columns = []
        while True:
            columns.append(self.word[entries])
            state = self.contexts(entries)
            if not state.any():
                return np.stack(columns[::-1], axis=1)
            entries = state - 1
