"""Spans of masked frames during training, as in HuBERT (Hsu et al. 2021), with ESPnet2's options.

Shapes: x (batch, time, size).
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from tympan.config.range import Range
from tympan.errors import UserError
from tympan.nn.masks import length_mask

_LEAST_SPANS = 2


class SpanMask(nn.Module):
    """Replaces spans of frames by a learned vector, and sets spans of channels to 0.

    `mask_prob` of the frames would be masked if no spans overlapped. Every utterance of a batch has the same number of
    masked frames. Only spans of a fixed length that may overlap are supported, so that the options of other spans
    (`mask_other`, `mask_min_space` and those of channels) have no effect.
    """

    def __init__(
        self,
        *,
        encoder_embed_dim: int,
        mask_prob: Annotated[float, Range(0, 1)] = 0.8,
        mask_selection: Literal["static", "uniform", "normal", "poisson"] = "static",
        mask_other: Annotated[float, Range(0, 1_000_000)] = 0.0,
        mask_length: Annotated[int, Range(1, 1_000_000)] = 10,
        no_mask_overlap: bool = False,
        mask_min_space: Annotated[int, Range(0, 1_000_000)] = 0,
        mask_channel_prob: Annotated[float, Range(0, 1)] = 0.0,
        mask_channel_selection: Literal["static", "uniform", "normal", "poisson"] = "static",
        mask_channel_other: Annotated[float, Range(0, 1_000_000)] = 0.0,
        mask_channel_length: Annotated[int, Range(1, 1_000_000)] = 10,
        no_mask_channel_overlap: bool = False,
        mask_channel_min_space: Annotated[int, Range(0, 1_000_000)] = 0,
    ) -> None:
        super().__init__()
        if mask_selection != "static" or no_mask_overlap:
            raise UserError(
                "masking: only mask_selection: static and no_mask_overlap: false are supported; set them in "
                "frontend_conf masking_conf, or use mask_feats: false"
            )
        if mask_channel_prob > 0 and (mask_channel_selection != "static" or no_mask_channel_overlap):
            raise UserError(
                "masking: only mask_channel_selection: static and no_mask_channel_overlap: false are supported; set "
                "them in frontend_conf masking_conf, or use mask_feats: false"
            )
        self.probability, self.length = mask_prob, mask_length
        self.channel_probability, self.channel_length = mask_channel_prob, mask_channel_length
        self.mask_embedding = nn.Parameter(torch.rand(encoder_embed_dim))

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """x with masked frames and channels; the padding stays as it is."""
        if self.probability > 0:
            masked = random_spans(lengths, x.size(1), probability=self.probability, span=self.length)
            x = torch.where(masked.unsqueeze(-1), self.mask_embedding.to(x.dtype), x)
        if self.channel_probability > 0:
            sizes = torch.full_like(lengths, x.size(2))
            masked = random_spans(
                sizes, x.size(2), probability=self.channel_probability, span=self.channel_length, least=0
            )
            x = x.masked_fill(masked.unsqueeze(1), 0.0)
        return x


def random_spans(lengths: Tensor, size: int, *, probability: float, span: int, least: int = _LEAST_SPANS) -> Tensor:
    """(batch, size) bool: spans that begin at different random positions, the same number of True in every row.

    A row has `probability` * length / `span` spans, rounded up or down at random, and at least `least`.
    """
    draws = torch.rand(len(lengths), device=lengths.device)
    count = (probability * lengths / span + draws).floor().clamp(min=least)
    # A row that is too short for this many whole spans has spans that are cut at its end
    begins = torch.where(lengths - span <= count, count + 1, lengths - span).clamp(min=0).minimum(lengths)
    starts = _ranks(length_mask(begins, size)) < count.unsqueeze(1)
    sums = nn.functional.pad(starts.long().cumsum(1), (span, 0))
    covered = (sums[:, span:] > sums[:, :-span]) & length_mask(lengths, size)
    # Rows with more masked positions lose random ones
    return (_ranks(covered) < covered.sum(1).amin()) & covered


def _ranks(chosen: Tensor) -> Tensor:
    """A random order of the positions of `chosen` (batch, size) in each row. The others have the rank `size`."""
    keys = torch.rand(chosen.shape, device=chosen.device) + (~chosen).float()
    ranks = keys.argsort(1).argsort(1)
    return torch.where(chosen, ranks, torch.full_like(ranks, chosen.size(1)))
