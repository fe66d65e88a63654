"""Shallow fusion for transducers: scores of the next token by a language model, an n-gram and the internal LM.

The internal language model is the transducer without its encoder: the joint network for an encoder output of zero
(Meng et al. 2021). It is subtracted, because an external model says the same again.

Shapes: N hypotheses, L tokens, V vocabulary, F scorers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from tympan.decode.ngram_scorer import NgramFullScorer
from tympan.models.lm.model import LanguageModel
from tympan.models.transducer_greedy import TransducerParts

MAX_CELLS = 8_000_000
"""Hypotheses times length times vocabulary whose logits a language model computes at once."""


class TextScorer(Protocol):
    """Scores the token after a text."""

    def __call__(self, tokens: Tensor, count: Tensor, prediction: Tensor, /) -> Tensor:
        """(N, V) for texts (N, L) of `count` (N,) tokens, and the projected predictions (N, size) after them."""
        ...


class LmText:
    """log P(next token | text) of a neural language model, which reads the whole text of each new hypothesis."""

    def __init__(self, lm: LanguageModel) -> None:
        self.lm = lm

    def __call__(self, tokens: Tensor, count: Tensor, prediction: Tensor) -> Tensor:
        longest = int(count.max()) if len(count) else 0
        text = torch.nn.functional.pad(tokens[:, :longest], (1, 0), value=self.lm.sos)
        size = max(1, MAX_CELLS // ((longest + 1) * self.lm.vocab_size))
        found = []
        for rows, last in zip(torch.split(text, size), torch.split(count, size), strict=True):
            logits = self.lm.lm(rows)[torch.arange(len(rows), device=rows.device), last]
            found.append(logits.float().log_softmax(1))
        return torch.cat(found) if found else prediction.new_zeros(0, self.lm.vocab_size)


class NgramText:
    """log10 P(next token | text) of an n-gram over tokens."""

    def __init__(self, scorer: NgramFullScorer) -> None:
        self.scorer = scorer

    def __call__(self, tokens: Tensor, count: Tensor, prediction: Tensor) -> Tensor:
        table = self.scorer.table
        # Words before the last order - 1 do not count; a text of fewer still sees its beginning
        reach = table.order - 1
        context = torch.where(count < reach, table.begin, 0)
        for back in range(reach, 0, -1):
            place = count - back
            word = self.scorer.word_of_token[tokens.gather(1, place.clamp(min=0).unsqueeze(1)).squeeze(1)]
            context = torch.where(place >= 0, table.advance(context, word), context)
        return table.distribution(context).index_select(1, self.scorer.word_of_token)


class InternalLm:
    """log P(next token | text) of the transducer itself, without its encoder; blanks left out."""

    def __init__(self, parts: TransducerParts) -> None:
        self.parts = parts

    def __call__(self, tokens: Tensor, count: Tensor, prediction: Tensor) -> Tensor:
        return self.parts.internal_lm(prediction)


class LengthText:
    """One for every token."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def __call__(self, tokens: Tensor, count: Tensor, prediction: Tensor) -> Tensor:
        return torch.ones(len(count), self.vocab_size, device=prediction.device)


class Fusion:
    """Weighted scorers by name."""

    def __init__(self, scorers: Mapping[str, tuple[TextScorer, float]]) -> None:
        self.names = tuple(scorers)
        self.scorers = [scorer for scorer, _ in scorers.values()]
        self.weights = [weight for _, weight in scorers.values()]

    def __call__(self, tokens: Tensor, count: Tensor, prediction: Tensor) -> Tensor:
        """(N, F, V), before weighting; (N, 0, 0) without scorers."""
        if not self.scorers:
            return prediction.new_zeros(len(count), 0, 0)
        return torch.stack([scorer(tokens, count, prediction).float() for scorer in self.scorers], 1)
