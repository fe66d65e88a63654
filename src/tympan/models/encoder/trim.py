"""`ctc_trim`: drop the frames at the end of an utterance that intermediate CTC is sure to be blank."""

from __future__ import annotations

import torch
from torch import Tensor

from tympan.nn.masks import length_mask

KEPT = 5
"""Blank frames that are kept after the last other frame. This and the next value are ESPnet2's."""
SURE = 0.95
BLANK = 0


def trimmed_lengths(posteriors: Tensor, lengths: Tensor) -> Tensor:
    """The lengths (batch,) without the blank frames at the end. Posteriors (batch, time, vocabulary)."""
    probability, best = posteriors.max(-1)
    is_blank = (probability > SURE) & (best == BLANK)
    positions = torch.arange(1, posteriors.size(1) + 1, device=lengths.device)
    is_spoken = length_mask(lengths, posteriors.size(1)) & ~is_blank
    last = torch.where(is_spoken, positions, 0).amax(-1)
    return torch.minimum(last + KEPT, lengths)
