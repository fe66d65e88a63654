"""The hypotheses of a transducer's beam search: of all utterances, one behind another.

Utterances may have different numbers of hypotheses, so there is no padding: `utterance` says whose each one is.

Shapes: N hypotheses, L tokens, V vocabulary, F scorers of the fusion, P earlier texts that prefix search looks at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from tympan.decode.ctc_search import HASH_FACTOR
from tympan.decode.search import Ended
from tympan.decode.transducer_fusion import Fusion
from tympan.models.transducer_greedy import TransducerParts

NEVER = float("-inf")


@dataclass(frozen=True)
class Beams:
    """What each hypothesis is, and what its next tokens depend on."""

    utterance: Tensor  # (N,)
    score: Tensor  # (N,) float64
    hash: Tensor  # (N,) of the text
    count: Tensor  # (N,) tokens
    tokens: Tensor  # (N, L)
    frames: Tensor  # (N, L) frame that emitted each token
    log_probs: Tensor  # (N, L) of each token
    prediction: Tensor  # (N, size) after the text, projected
    memory: Tensor  # (N, ...) state of the prediction network after the text
    fused: Tensor  # (N, F, V) scores of the next token
    sums: Tensor  # (N, F) of the tokens so far
    past_hash: Tensor  # (N, P) of the text without its last tokens: one less, two less, ...
    past_prediction: Tensor  # (N, P, size)

    def select(self, rows: Tensor) -> Beams:
        """Only these, in this order; indices or a mask."""
        return Beams(*(getattr(self, item.name)[rows] for item in fields(self)))

    def scored(self, score: Tensor) -> Beams:
        return replace(self, score=score)

    def __len__(self) -> int:
        return len(self.utterance)

    @property
    def normalized(self) -> Tensor:
        """Scores divided by the number of tokens with the first blank, as ESPnet2 counts them."""
        return self.score / (self.count + 1)

    def grown_hash(self, rows: Tensor, tokens: Tensor) -> Tensor:
        """Of the texts of these rows with one more token each."""
        return self.hash[rows] * HASH_FACTOR + tokens + 1

    def ranking(self, *, is_normalized: bool) -> Tensor:
        return self.normalized if is_normalized else self.score


def joined(parts: Sequence[Beams]) -> Beams:
    """One behind another; texts are padded to the same length."""
    longest = max(part.tokens.size(1) for part in parts)
    parts = [_lengthened(part, longest) for part in parts]
    return Beams(*(torch.cat([getattr(part, item.name) for part in parts]) for item in fields(Beams)))


def _lengthened(beams: Beams, size: int) -> Beams:
    more = size - beams.tokens.size(1)
    if more <= 0:
        return beams
    tokens, frames, log_probs = (
        torch.nn.functional.pad(item, (0, more)) for item in (beams.tokens, beams.frames, beams.log_probs)
    )
    return replace(beams, tokens=tokens, frames=frames, log_probs=log_probs)


@dataclass(frozen=True)
class Grower:
    """Makes hypotheses: the empty ones, and those with one more token."""

    parts: TransducerParts
    fusion: Fusion
    past: int = 0
    """Earlier texts to remember."""

    def bonus(self, beams: Beams) -> Tensor:
        """Weighted scores (N, V) of the next token by the fusion."""
        weights = torch.tensor(self.fusion.weights, device=beams.fused.device, dtype=beams.fused.dtype)
        return (beams.fused * weights.view(1, -1, 1)).sum(1).double()

    def empty(self, frames: Tensor) -> Beams:
        """One without tokens for each utterance of projected frames (U, T, size)."""
        prediction, memory = self.parts.start(frames)
        utterances = len(frames)
        zeros = torch.zeros(utterances, dtype=torch.long, device=frames.device)
        tokens = zeros.unsqueeze(1)
        return Beams(
            utterance=torch.arange(utterances, device=frames.device),
            score=zeros.double(),
            hash=zeros,
            count=zeros,
            tokens=tokens,
            frames=tokens,
            log_probs=tokens.double(),
            prediction=prediction,
            memory=memory,
            fused=self.fusion(tokens, zeros, prediction),
            sums=zeros.double().unsqueeze(1).expand(-1, len(self.fusion.names)),
            past_hash=torch.full((utterances, self.past), -1, device=frames.device),
            past_prediction=prediction.unsqueeze(1).expand(-1, self.past, -1),
        )

    def grow(self, parents: Beams, tokens: Tensor, *, scores: Tensor, frames: Tensor, log_probs: Tensor) -> Beams:
        """Each of `parents` with one more token (N,), emitted at a frame (N,), and the score (N,) after it."""
        prediction, memory = self.parts.advance(tokens, parents.memory)
        if len(parents) and int(parents.count.max()) == parents.tokens.size(1):
            parents = _lengthened(parents, 2 * parents.tokens.size(1))
        place = parents.count.unsqueeze(1)
        texts = parents.tokens.scatter(1, place, tokens.unsqueeze(1))
        count = parents.count + 1
        sums = parents.sums
        if self.fusion.names:
            index = tokens.view(-1, 1, 1).expand(-1, len(self.fusion.names), 1)
            sums = sums + parents.fused.gather(2, index).squeeze(2)
        before = torch.cat([parents.hash.unsqueeze(1), parents.past_hash], 1)[:, : self.past]
        outputs = torch.cat([parents.prediction.unsqueeze(1), parents.past_prediction], 1)[:, : self.past]
        return replace(
            parents,
            score=scores,
            hash=parents.grown_hash(torch.arange(len(tokens), device=tokens.device), tokens),
            count=count,
            tokens=texts,
            frames=parents.frames.scatter(1, place, frames.unsqueeze(1)),
            log_probs=parents.log_probs.scatter(1, place, log_probs.double().unsqueeze(1)),
            prediction=prediction,
            memory=memory,
            fused=self.fusion(texts, count, prediction),
            sums=sums,
            past_hash=before,
            past_prediction=outputs,
        )


def text_keys(utterance: Tensor, text_hash: Tensor) -> Tensor:
    """(N,) numbers that are equal for the same text of the same utterance."""
    return text_hash * HASH_FACTOR + utterance


def best_rows(utterance: Tensor, ranking: Tensor, beam: int) -> Tensor:
    """Rows of the `beam` best of each utterance, utterance by utterance, best first. Equal ones keep their order."""
    order = ranking.argsort(descending=True, stable=True)
    order = order[utterance[order].argsort(stable=True)]
    whose = utterance[order]
    is_first = torch.ones_like(whose, dtype=torch.bool)
    is_first[1:] = whose[1:] != whose[:-1]
    position = torch.arange(len(order), device=order.device)
    start = torch.where(is_first, position, 0).cummax(0).values if len(order) else position
    return order[position - start < beam]


def merged(beams: Beams) -> Beams:
    """Hypotheses of the same text become the first of them, with the sum of their probabilities."""
    group = torch.unique(text_keys(beams.utterance, beams.hash), return_inverse=True)[1]
    if int(group.max()) + 1 == len(beams):
        return beams
    position = torch.arange(len(beams), device=group.device)
    groups = int(group.max()) + 1
    first = position.new_full((groups,), len(beams)).scatter_reduce(0, group, position, "amin")
    high = beams.score.new_full((groups,), NEVER).scatter_reduce(0, group, beams.score, "amax")
    total = beams.score.new_zeros(groups).index_add(0, group, (beams.score - high[group]).exp()).log() + high
    order = first.argsort()
    return beams.select(first[order]).scored(total[order])


def results(beams: Beams, fusion: Fusion, *, utterances: int, is_normalized: bool) -> list[list[Ended]]:
    """The hypotheses of every utterance, the best first."""
    finite = beams.select(beams.score.isfinite())
    chosen = finite.select(best_rows(finite.utterance, finite.ranking(is_normalized=is_normalized), len(beams) + 1))
    found: list[list[Ended]] = [[] for _ in range(utterances)]
    columns = (chosen.utterance, chosen.score, chosen.count, chosen.tokens, chosen.frames, chosen.log_probs.exp())
    sums = chosen.sums.tolist()
    for row, (utterance, score, count, tokens, frames, probabilities) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        parts = dict(zip(fusion.names, sums[row], strict=True))
        fused = sum(weight * value for weight, value in zip(fusion.weights, sums[row], strict=True))
        spans = [(frame, frame + 1, min(value, 1.0)) for frame, value in zip(frames, probabilities, strict=True)]
        found[utterance].append(
            Ended(tuple(tokens[:count]), score, {"transducer": score - fused, **parts}, spans=tuple(spans[:count]))
        )
    return found
