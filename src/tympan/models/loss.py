"""The result of a model's forward: a loss as weighted sums, so that ranks and micro-batches add up exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LossTerm:
    """One part of the loss: weight * total / count."""

    total: Tensor
    """Differentiable sum over the items (scalar)."""
    count: Tensor
    """Number of items: utterances, or tokens if the loss is normalized by length (scalar, no gradient)."""
    weight: float = 1.0


PERPLEXITY = "perplexity"
"""Name of the statistic whose mean is a negative log-likelihood and which is reported as its exponential."""


@dataclass(frozen=True)
class Stat:
    """A mean to report: total / count (both scalars, detached); ratios such as cer are errors / reference length."""

    total: Tensor
    count: Tensor


@dataclass(frozen=True)
class Loss:
    """The loss of a batch and the statistics to report.

    Counts are summed over ranks before dividing, so that N ranks give the same gradient as one.
    """

    terms: tuple[LossTerm, ...]
    stats: dict[str, Stat]

    @property
    def value(self) -> Tensor:
        """The loss of only this batch."""
        return self.value_over(torch.stack([term.count for term in self.terms]))

    def value_over(self, counts: Tensor) -> Tensor:
        """The contribution of these items to the global loss; `counts` (one per term) are over all ranks."""
        parts = [term.weight * term.total / count for term, count in zip(self.terms, counts, strict=True)]
        return torch.stack(parts).sum()


def with_total(terms: Sequence[LossTerm], stats: Mapping[str, Stat], utterances: Tensor) -> Loss:
    """Add the statistic `loss`: the weighted sum of the terms, as a mean over utterances."""
    with torch.no_grad():
        parts = [term.weight * term.total / term.count.clamp(min=1.0) for term in terms]
        total = torch.stack(parts).sum() * utterances
    return Loss(tuple(terms), {"loss": Stat(total, utterances), **stats})


def count_of(number: int, like: Tensor) -> Tensor:
    """A count as a scalar tensor on the device of `like`."""
    return torch.tensor(float(number), device=like.device)
