"""Perplexity of texts under a language model."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from tympan.data.batch import collate
from tympan.data.dataset import UtteranceDataset
from tympan.models.lm.model import LanguageModel


@dataclass(frozen=True)
class TextScore:
    """Negative log-likelihood (natural logarithm) of sentences, and their number of tokens including the ends."""

    nll: float
    tokens: int

    @property
    def perplexity(self) -> float:
        return math.exp(self.nll / self.tokens)


@torch.inference_mode()
def score_texts(
    model: LanguageModel,
    dataset: UtteranceDataset,
    *,
    batch_size: int,
    device: torch.device,
    unk_id: int | None = None,
) -> Iterator[tuple[str, TextScore, int]]:
    """For each utterance, in the order of the data: id, score, and number of tokens that are `unk_id`.

    Padding changes no score, so the result does not depend on the batch size.
    """
    for first in range(0, len(dataset), batch_size):
        utterances = [dataset[row, 0] for row in range(first, min(first + batch_size, len(dataset)))]
        batch = collate(utterances, global_size=len(utterances)).to(device)
        nll, lengths = model.nll(batch.tensors["text"], batch.tensors["text_lengths"])
        totals = nll.double().sum(1).tolist()
        for utterance, total, tokens in zip(utterances, totals, lengths.tolist(), strict=True):
            outside = 0 if unk_id is None else int((utterance.arrays["text"] == unk_id).sum())
            yield utterance.id, TextScore(total, tokens), outside
