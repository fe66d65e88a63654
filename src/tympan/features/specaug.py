"""SpecAugment (Park et al. 2019): time warping, frequency masking and time masking.

Shapes: features (batch, time, bands), lengths (batch,). Every random choice for an utterance depends only on its seed:
not on the rest of the batch, the padding, the device or the number of processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from tympan.config.range import Range
from tympan.errors import UserError
from tympan.nn.masks import length_mask


class SpecAug(nn.Module):
    """`specaug: specaug`.

    Differs from ESPnet2 on purpose: masks are placed inside each utterance (not the padded batch), every utterance has
    its own warp, and `replace_with_zero: false` uses the mean of the utterance.
    """

    def __init__(
        self,
        apply_time_warp: bool = True,
        time_warp_window: Annotated[int, Range(0, 100_000)] = 5,
        time_warp_mode: Literal["bicubic", "bilinear"] = "bicubic",
        apply_freq_mask: bool = True,
        freq_mask_width_range: Annotated[int | Sequence[int], Range(0, 100_000)] = (0, 20),
        num_freq_mask: Annotated[int, Range(0, 10_000)] = 2,
        apply_time_mask: bool = True,
        time_mask_width_range: Annotated[int | Sequence[int] | None, Range(0, 1_000_000)] = None,
        time_mask_width_ratio_range: Annotated[float | Sequence[float] | None, Range(0, 1)] = None,
        num_time_mask: Annotated[int, Range(0, 10_000)] = 2,
        replace_with_zero: bool = True,
    ) -> None:
        super().__init__()
        if not (apply_time_warp or apply_freq_mask or apply_time_mask):
            raise UserError(
                "specaug_conf disables time warping, frequency masks and time masks; use specaug: null instead"
            )
        if apply_time_mask and (time_mask_width_range is None) == (time_mask_width_ratio_range is None):
            raise UserError("specaug_conf needs one of time_mask_width_range and time_mask_width_ratio_range")
        self.warp_window = time_warp_window if apply_time_warp else 0
        self.warp_mode = time_warp_mode
        self.num_freq_mask = num_freq_mask if apply_freq_mask else 0
        self.num_time_mask = num_time_mask if apply_time_mask else 0
        self.freq_width = _as_range("freq_mask_width_range", freq_mask_width_range)
        self.time_width = _as_range("time_mask_width_range", time_mask_width_range or 1)
        self.time_ratio = (
            None
            if time_mask_width_ratio_range is None
            else _as_range("time_mask_width_ratio_range", time_mask_width_ratio_range)
        )
        self.replace_with_zero = replace_with_zero

    def forward(self, features: Tensor, lengths: Tensor, seeds: Tensor | None = None) -> Tensor:
        """Augmented features. Without `seeds` (batch,), torch's generator draws them."""
        if seeds is None:
            seeds = torch.randint(1 << 62, (features.size(0),)).to(features.device)
        draws = Draws(seeds)
        if self.warp_window > 0:
            features = self._warp(features, lengths, draws)
        if self.num_freq_mask > 0:
            size = torch.full_like(lengths, features.size(2))
            low, high = (torch.full_like(lengths, int(limit)) for limit in self.freq_width)
            mask = _draw_spans(draws, 100, self.num_freq_mask, low, high, size, features.size(2))
            features = self._replace(features, lengths, mask.unsqueeze(1))
        if self.num_time_mask > 0:
            low, high = self._time_limits(lengths)
            mask = _draw_spans(draws, 200, self.num_time_mask, low, high, lengths, features.size(1))
            features = self._replace(features, lengths, mask.unsqueeze(2))
        return features

    def _time_limits(self, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Mask widths: at least the first, below the second."""
        if self.time_ratio is None:
            return torch.full_like(lengths, int(self.time_width[0])), torch.full_like(lengths, int(self.time_width[1]))
        low, high = ((lengths * ratio).floor().to(lengths.dtype) for ratio in self.time_ratio)
        return low.clamp(min=0), torch.minimum(high, lengths)

    def _replace(self, features: Tensor, lengths: Tensor, mask: Tensor) -> Tensor:
        if self.replace_with_zero:
            return features.masked_fill(mask, 0.0)
        inside = length_mask(lengths, features.size(1)).unsqueeze(-1)
        values = (lengths.clamp(min=1) * features.size(2)).to(features.dtype)
        mean = (features * inside).sum((1, 2)) / values
        return torch.where(mask & inside, mean.view(-1, 1, 1), features)

    def _warp(self, features: Tensor, lengths: Tensor, draws: Draws) -> Tensor:
        """Stretch the first `center` frames to `warped` frames, and the others to the rest."""
        window = self.warp_window
        is_long = lengths > 2 * window
        center = draws.integers(0, torch.full_like(lengths, window), lengths - window)
        warped = draws.integers(1, center - window + 1, center + window + 1)
        # If both are equal, no frame moves.
        center = torch.where(is_long, center, 1).unsqueeze(1)
        warped = torch.where(is_long, warped, 1).unsqueeze(1)
        lengths = torch.maximum(lengths, center.squeeze(1) + 1).unsqueeze(1)

        frame = torch.arange(features.size(1), device=features.device).unsqueeze(0)
        is_left = frame < warped
        start_in, start_out = torch.where(is_left, 0, center), torch.where(is_left, 0, warped)
        size_in = torch.where(is_left, center, lengths - center)
        size_out = torch.where(is_left, warped, lengths - warped)
        source = (frame - start_out + 0.5) * (size_in / size_out) - 0.5
        first, weights = _taps(source, self.warp_mode)
        out = torch.zeros_like(features)
        for offset, weight in enumerate(weights):
            index = torch.minimum((first + offset).clamp(min=0), size_in - 1) + start_in
            index = index.clamp(max=features.size(1) - 1).unsqueeze(-1).expand_as(features)
            out = out + weight.unsqueeze(-1).to(features.dtype) * features.gather(1, index)
        return out.masked_fill(~length_mask(lengths.squeeze(1), features.size(1)).unsqueeze(-1), 0.0)


@dataclass(frozen=True)
class Draws:
    """Random integers as a function of (seed, index of the draw): splitmix64, the same on every device."""

    seeds: Tensor  # (batch,) int64

    def integers(self, number: int, low: Tensor, high: Tensor) -> Tensor:
        """(batch,): low <= value < high; low if the range is empty."""
        bits = (self._mix(number) >> 1) & ((1 << 62) - 1)
        return low + bits % (high - low).clamp(min=1)

    def _mix(self, number: int) -> Tensor:
        z = self.seeds + _signed((number + 1) * 0x9E3779B97F4A7C15)
        z = (z ^ _shift(z, 30)) * _signed(0xBF58476D1CE4E5B9)
        z = (z ^ _shift(z, 27)) * _signed(0x94D049BB133111EB)
        return z ^ _shift(z, 31)


def _signed(value: int) -> int:
    """The 64-bit pattern as torch's int64 (whose products wrap)."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def _shift(z: Tensor, bits: int) -> Tensor:
    """Right shift that fills with zeros."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _draw_spans(
    draws: Draws, first_draw: int, count: int, low: Tensor, high: Tensor, sizes: Tensor, size: int
) -> Tensor:
    """(batch, size) bool: `count` spans of random width and position within each of `sizes`."""
    position = torch.arange(size, device=sizes.device)
    mask = torch.zeros(sizes.size(0), size, dtype=torch.bool, device=sizes.device)
    for index in range(count):
        number = first_draw + 2 * index
        width = draws.integers(number, low, high) * (high > low)
        start = draws.integers(number + 1, torch.zeros_like(sizes), (sizes - width).clamp(min=1))
        start, end = start.unsqueeze(1), (start + width).unsqueeze(1)
        mask |= (position >= start) & (position < end)
    return mask


def _taps(source: Tensor, mode: str) -> tuple[Tensor, list[Tensor]]:
    """The first contributing frame, and the weights of it and the following frames (as in torch's interpolate)."""
    below = source.floor()
    t = source - below
    if mode == "bilinear":
        return below.long(), [1.0 - t, t]
    a = -0.75  # Keys' cubic convolution, torch's constant
    distances = (t + 1.0, t, 1.0 - t, 2.0 - t)
    near = [((a + 2.0) * d - (a + 3.0)) * d * d + 1.0 for d in distances[1:3]]
    far = [((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a for d in (distances[0], distances[3])]
    return below.long() - 1, [far[0], *near, far[1]]


def _as_range(name: str, value: float | Sequence[float]) -> tuple[float, float]:
    """(low, high); one number means from 0."""
    pair = (0, value) if isinstance(value, int | float) else tuple(value)
    if len(pair) != 2 or not 0 <= pair[0] < pair[1]:
        raise UserError(f"specaug_conf {name} must be two increasing numbers of at least 0, but it is {list(pair)}")
    return pair[0], pair[1]
