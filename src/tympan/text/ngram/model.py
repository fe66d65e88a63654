"""An n-gram model as flat arrays: a trie of contexts, in order of length, whose nodes are integers.

Entry e is one n-gram. Entries are sorted by order, then by context, then by word, so that the words which may follow a
context lie together. State 0 is the empty context; state e + 1 is the n-gram of entry e as a context, for all orders
but the highest. `children[s]` is the first entry that extends state s, `children[s + 1]` the end of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tympan.text.ngram.scratch import Array


@dataclass(frozen=True)
class NgramModel:
    """Log10 probabilities and back-off weights of all n-grams (E entries, S states)."""

    words: list[str]
    counts: list[int]
    """Entries of each order."""
    word: Array  # (E,) int32: the last word of each n-gram
    log_prob: Array  # (E,) float32
    backoff: Array  # (S,) float32
    suffix: Array  # (E,) int: state of the longest proper suffix that the model knows
    children: Array  # (S + 1,) int

    @property
    def order(self) -> int:
        return len(self.counts)

    @property
    def states(self) -> int:
        return len(self.backoff)

    def first_entry(self, order: int) -> int:
        """Where the n-grams of this order begin."""
        return sum(self.counts[: order - 1])

    def contexts(self, entries: Array) -> Array:
        """State that each of these entries extends."""
        # Of one type: else the whole array would be converted for every call.
        return np.searchsorted(self.children, entries.astype(self.children.dtype), side="right") - 1

    def ngrams(self, first: int, last: int) -> Array:
        """Words of the entries first..last-1, which must be of one order: (entries, order) word numbers."""
        entries = np.arange(first, last)
        columns = []
        while True:
            columns.append(self.word[entries])
            state = self.contexts(entries)
            if not state.any():
                return np.stack(columns[::-1], axis=1)
            entries = state - 1
