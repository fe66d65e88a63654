"""Pruning: the few continuations of each hypothesis that are worth scoring by every scorer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Candidates:
    """Tokens that may follow each hypothesis. `is_extra` marks slots that repeat another and must not be chosen;
    `is_vocabulary`: they are all tokens there are, in their order.
    """

    tokens: Tensor  # (U, B, C)
    is_extra: Tensor | None = None  # (U, B, C)
    is_vocabulary: bool = False


def best_tokens(scores: Tensor, count: int) -> Candidates:
    """The `count` best of scores (U, B, V)."""
    return Candidates(tokens=scores.topk(min(count, scores.size(2)), dim=2).indices)


def best_tokens_and_eos(scores: Tensor, count: int, *, eos: int) -> Candidates:
    """The `count` best, and eos even if it is not among them: CTC may know an end that the others do not see."""
    tokens = scores.topk(count, dim=2).indices
    has_eos = (tokens == eos).any(2, keepdim=True)
    tokens = torch.nn.functional.pad(tokens, (0, 1), value=eos)
    is_extra = torch.nn.functional.pad(torch.zeros_like(tokens[..., :-1], dtype=torch.bool), (0, 1), value=True)
    return Candidates(tokens=tokens, is_extra=is_extra & has_eos)


def all_tokens(scores: Tensor) -> Candidates:
    """The whole vocabulary."""
    return Candidates(tokens=torch.arange(scores.size(2), device=scores.device).expand_as(scores), is_vocabulary=True)
