"""Log10 scores of whole sentences under an n-gram model, many sentences at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch

from tympan.decode.ngram_table import NgramTable
from tympan.text.ngram.model import NgramModel


@dataclass(frozen=True)
class SentenceScore:
    """Log10 probability of a sentence with its end. `known` excludes the scores of unknown tokens."""

    total: float
    known: float
    tokens: int
    """Number of tokens, with the end."""
    unknown: int

    def __add__(self, other: SentenceScore) -> SentenceScore:
        return SentenceScore(
            self.total + other.total,
            self.known + other.known,
            self.tokens + other.tokens,
            self.unknown + other.unknown,
        )


def score_sentences(
    model: NgramModel, sentences: Iterable[Sequence[str]], *, device: torch.device, batch_size: int = 4096
) -> Iterator[SentenceScore]:
    """One score per sentence, in order. Every sentence begins with <s> and ends with </s>."""
    table = NgramTable.from_model(model, device)
    numbers = {word: number for number, word in enumerate(model.words)}
    unk, eos = numbers["<unk>"], numbers["</s>"]
    stream = iter(sentences)
    while batch := list(islice(stream, batch_size)):
        rows = [torch.tensor([*(numbers.get(word, unk) for word in words), eos]) for words in batch]
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1).to(device)
        state = torch.full((len(batch),), table.begin, device=device)
        scores = torch.zeros(padded.shape, dtype=torch.float64, device=device)
        for index, words in enumerate(padded.T):
            scores[:, index] = table.score(state, words.clamp(min=0))
            state = table.advance(state, words.clamp(min=0))
        is_token, is_unknown = padded >= 0, padded == unk
        columns = (
            scores.where(is_token, 0.0).sum(1),
            scores.where(is_token & ~is_unknown, 0.0).sum(1),
            is_token.sum(1),
            is_unknown.sum(1),
        )
        for total, known, tokens, unknown in zip(*(column.tolist() for column in columns), strict=True):
            yield SentenceScore(total, known, tokens, unknown)
