"""An n-gram model as tensors: scores batches of contexts, and whole next-word distributions, without a loop over them.

States are integers (see tympan/text/ngram/model.py): 0 is the empty context. Scores are log10, as in the ARPA file.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tympan.text.ngram.model import NgramModel


@dataclass(frozen=True)
class NgramTable:
    """E n-grams, S states, W words."""

    order: int
    bits: int
    """A key is a state shifted left by this, plus a word."""
    key: Tensor  # (E,) ascending
    log_prob: Tensor  # (E,)
    next_state: Tensor  # (E,) the context after this n-gram
    backoff: Tensor  # (S,)
    shorter: Tensor  # (S,) the longest known context without the first word
    children: Tensor  # (S + 1,) index of the first n-gram that extends a state
    begin: int
    """State at the beginning of a sentence."""
    words: int

    @classmethod
    def from_model(cls, model: NgramModel, device: torch.device) -> NgramTable:
        bits = max(1, (len(model.words) - 1).bit_length())
        children = np.asarray(model.children, np.int64)
        entries, states = len(model.word), model.states
        context = np.repeat(np.arange(states, dtype=np.int64), np.diff(children))
        suffix = np.asarray(model.suffix, np.int64)
        next_state = suffix.copy()
        next_state[: states - 1] = np.arange(1, states)
        begin = model.words.index("<s>") + 1 if model.order > 1 else 0

        def tensor(array: np.ndarray) -> Tensor:
            return torch.from_numpy(np.array(array)).to(device)

        assert len(context) == entries
        return cls(
            order=model.order,
            bits=bits,
            key=tensor(context << bits | model.word),
            log_prob=tensor(model.log_prob),
            next_state=tensor(next_state),
            backoff=tensor(model.backoff),
            shorter=tensor(np.concatenate([[0], suffix[: states - 1]])),
            children=tensor(children),
            begin=begin,
            words=len(model.words),
        )

    def advance(self, states: Tensor, words: Tensor) -> Tensor:
        """The contexts after one more word each. Same shape."""
        return self.walk(states, words)[1]

    def score(self, states: Tensor, words: Tensor) -> Tensor:
        """log10 p(word | context) for states and words of one shape (broadcast)."""
        shape = np.broadcast_shapes(states.shape, words.shape)
        return self.walk(states.expand(shape), words.expand(shape))[0]

    def distribution(self, states: Tensor) -> Tensor:
        """log10 probabilities of every word: states (N,) -> (N, W)."""
        rows = states.numel()
        chain, owed = [states], [torch.zeros_like(states, dtype=self.log_prob.dtype)]
        while len(chain) < self.order:
            owed.append(owed[-1] + self.backoff[chain[-1]])
            chain.append(self.shorter[chain[-1]])
        scores = self.log_prob[: self.words] + owed.pop().unsqueeze(1)
        chain.pop()  # the empty context, whose words were written above
        first = [self.children[state] for state in chain]
        # If the shorter context is already empty, its children are the unigrams.
        count = [(self.children[s + 1] - f) * (s > 0) for s, f in zip(chain, first, strict=True)]
        totals = torch.stack([c.sum() for c in count]).tolist() if count else []
        for level in reversed(range(len(chain))):  # longer contexts overwrite shorter ones
            row = torch.repeat_interleave(
                torch.arange(rows, device=states.device), count[level], output_size=totals[level]
            )
            before = count[level].cumsum(0) - count[level]
            entry = torch.arange(totals[level], device=states.device) + (first[level] - before)[row]
            word = self.key[entry] & ((1 << self.bits) - 1)
            scores[row, word] = self.log_prob[entry] + owed[level][row]
        return scores

    def walk(self, states: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
        """Back off until the n-gram is known. Returns its score with the backoff weights, and the next context."""
        state = states
        score = torch.zeros(states.shape, dtype=self.log_prob.dtype, device=states.device)
        following = torch.zeros_like(states)
        is_done = torch.zeros_like(states, dtype=torch.bool)
        for _ in range(self.order):
            wanted = state << self.bits | words
            entry = torch.searchsorted(self.key, wanted).clamp_(max=len(self.key) - 1)
            is_found = (self.key[entry] == wanted) & ~is_done
            score = torch.where(is_found, score + self.log_prob[entry], score)
            following = torch.where(is_found, self.next_state[entry], following)
            is_done = is_done | is_found
            score = torch.where(is_done, score, score + self.backoff[state])
            state = self.shorter[state]
        return score, following
