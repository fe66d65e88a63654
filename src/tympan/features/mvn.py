"""Mean and variance normalization with the statistics of a corpus, or of each utterance.

Shapes: features (batch, time, size), lengths (batch,).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from torch import Tensor, nn

from tympan.config.range import Range
from tympan.errors import UserError
from tympan.features.arrays import Floats
from tympan.files import explained, open_file, require_small_arrays
from tympan.nn.masks import length_mask


class GlobalMvn(nn.Module):
    """`normalize: global_mvn`. Statistics: `feats_stats.npz` of `--collect_stats`, or Kaldi's matrix as .npy.

    Without `stats_file` (loading a trained model), the mean and deviation of `input_size` values come with the weights.
    """

    def __init__(
        self,
        stats_file: Path | None = None,
        norm_means: bool = True,
        norm_vars: bool = True,
        eps: Annotated[float, Range(0, 1)] = 1.0e-20,
        *,
        input_size: int | None = None,
    ) -> None:
        super().__init__()
        self.norm_means = norm_means
        self.norm_vars = norm_vars
        if stats_file is None:
            assert input_size is not None
            mean, std = torch.zeros(input_size), torch.ones(input_size)
        else:
            mean, std = _read_statistics(Path(stats_file), eps)
            if input_size is not None and mean.numel() != input_size:
                raise UserError(
                    f"{stats_file}: statistics for {mean.numel()} values per frame, but the features have {input_size}"
                )
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    mean: Tensor
    std: Tensor

    def forward(self, features: Tensor, lengths: Tensor) -> Tensor:
        """Normalized features, zero beyond the lengths."""
        if self.norm_means:
            features = features - self.mean.to(features.dtype)
        if self.norm_vars:
            features = features / self.std.to(features.dtype)
        return _zero_padding(features, lengths)


class UtteranceMvn(nn.Module):
    """`normalize: utterance_mvn`."""

    def __init__(
        self, norm_means: bool = True, norm_vars: bool = False, eps: Annotated[float, Range(0, 1)] = 1.0e-20
    ) -> None:
        super().__init__()
        self.norm_means = norm_means
        self.norm_vars = norm_vars
        self.eps = eps

    def forward(self, features: Tensor, lengths: Tensor) -> Tensor:
        """Normalized features, zero beyond the lengths."""
        features = _zero_padding(features, lengths)
        count = lengths.clamp(min=1).to(features.dtype).view(-1, 1, 1)
        centered = _zero_padding(features - features.sum(1, keepdim=True) / count, lengths)
        out = centered if self.norm_means else features
        if self.norm_vars:
            deviation = (centered.square().sum(1, keepdim=True) / count).sqrt().clamp(min=self.eps)
            out = out / deviation
        return out


def _zero_padding(features: Tensor, lengths: Tensor) -> Tensor:
    return features.masked_fill(~length_mask(lengths, features.size(1)).unsqueeze(-1), 0.0)


def _read_statistics(path: Path, eps: float) -> tuple[Tensor, Tensor]:
    kind = "a statistics file with count, sum and sum_square"
    advice = "; --collect_stats true creates it"
    if not path.exists():
        raise UserError(f"{path}: no such statistics file{advice}")
    with open_file(path) as stream, explained(path, kind, advice=advice):
        require_small_arrays(stream)
        stats = np.load(stream, allow_pickle=False)
        if isinstance(stats, np.ndarray):  # Kaldi: sums and their count, then sums of squares
            count, total, total_square = stats[0, -1], stats[0, :-1], stats[1, :-1]
        else:
            count, total, total_square = stats["count"], stats["sum"], stats["sum_square"]
        mean, std = _moments(count, total, total_square, eps)
    return torch.from_numpy(np.asarray(mean, np.float32)), torch.from_numpy(np.asarray(std, np.float32))


def _moments(count: Floats, total: Floats, total_square: Floats, eps: float) -> tuple[Floats, Floats]:
    """Mean and deviation. ValueError for sums that no features can have."""
    if count.ndim or total.ndim != 1 or total.shape != total_square.shape or not total.size:
        raise ValueError(f"sums of shape {total.shape} and {total_square.shape}")
    if not (1 <= count < np.inf and np.isfinite(total).all() and (total_square >= 0).all()):
        raise ValueError("a count below 1, a number that is not finite, or a negative sum of squares")
    mean = total / count
    variance = total_square / count - mean * mean
    if not (np.abs(mean) < 1e30).all() or not (variance < 1e30).all():
        raise ValueError("a mean or variance that is not finite")
    # Rounding can make the variance of constant features negative, but not by much.
    if (variance < -1e-3 * (1 + mean * mean)).any():
        raise ValueError("a negative variance")
    return mean, np.sqrt(np.maximum(variance, eps))
