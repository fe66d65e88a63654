"""Cross entropy with label smoothing."""

from __future__ import annotations

import math

from torch import Tensor

from tympan.nn.full_precision import at_least_float32


def smoothed_loss(logits: Tensor, targets: Tensor, mask: Tensor, *, smoothing: float) -> Tensor:
    """The sum over all positions of `mask` of KL(smoothed target || softmax(logits)), in float32.

    The target gets 1 - smoothing, every other token smoothing / (vocabulary - 1) (Szegedy et al. 2016, with the
    entropy of the target subtracted, so that a perfect model has loss 0).
    logits (batch, length, vocabulary); targets, mask (batch, length).
    """
    vocabulary = logits.size(-1)
    log_probs = at_least_float32(logits).log_softmax(-1)
    of_target = log_probs.gather(-1, targets.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    other = smoothing / (vocabulary - 1)
    cross_entropy = -(1.0 - smoothing - other) * of_target
    if smoothing > 0:
        cross_entropy = cross_entropy - other * log_probs.sum(-1)
    negative_entropy = _xlogx(1.0 - smoothing) + (vocabulary - 1) * _xlogx(other)
    return ((cross_entropy + negative_entropy) * mask).sum()


def _xlogx(x: float) -> float:
    return x * math.log(x) if x > 0 else 0.0
