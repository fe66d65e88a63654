"""SpecAugment: against torch's interpolation, as a function of seeds, inside every utterance."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tympan.errors import UserError
from tympan.features.specaug import Draws, SpecAug

LENGTHS = torch.tensor([120, 43, 10, 80])
SEEDS = torch.tensor([1, 2, 3, 4])


@pytest.fixture
def features() -> torch.Tensor:
    features = torch.randn(4, 120, 80, generator=torch.Generator().manual_seed(0)) + 5.0
    return features * (torch.arange(120) < LENGTHS.unsqueeze(1)).unsqueeze(-1)


@pytest.mark.parametrize("mode", ["bicubic", "bilinear"])
def test_warp_equals_interpolation_of_both_sides(features: torch.Tensor, mode: str) -> None:
    window = 5
    augment = SpecAug(apply_freq_mask=False, apply_time_mask=False, time_warp_window=window, time_warp_mode=mode)
    warped = augment(features, LENGTHS, SEEDS)
    draws = Draws(SEEDS)
    centers = draws.integers(0, torch.full_like(LENGTHS, window), LENGTHS - window)
    borders = draws.integers(1, centers - window + 1, centers + window + 1)
    assert (centers != borders)[[0, 1, 3]].any()
    for row, (length, center, border) in enumerate(
        zip(LENGTHS.tolist(), centers.tolist(), borders.tolist(), strict=True)
    ):
        expected = features[row : row + 1, :length]
        if length > 2 * window:
            left, right = expected[:, None, :center], expected[:, None, center:]
            left = F.interpolate(left, (border, 80), mode=mode, align_corners=False)
            right = F.interpolate(right, (length - border, 80), mode=mode, align_corners=False)
            expected = torch.cat([left, right], dim=2)[:, 0]
        torch.testing.assert_close(warped[row, :length], expected[0], atol=1e-4, rtol=1e-4)
        assert warped[row, length:].eq(0).all()


def test_masks_have_the_widths_and_places_that_were_asked_for() -> None:
    augment = SpecAug(apply_time_warp=False, num_freq_mask=1, num_time_mask=1, time_mask_width_range=(5, 30))
    lengths = torch.full((2000,), 90)
    lengths[1000:] = 60
    out = augment(torch.ones(2000, 100, 80), lengths, torch.arange(2000))
    bands = out.amax(1).eq(0).sum(1)
    assert bands.min() == 0
    assert bands.max() == 19
    assert bands.float().mean().item() == pytest.approx(9.5, abs=0.5)
    spans = out.amax(2).eq(0)
    widths = spans.sum(1)
    assert widths.min() == 5
    assert widths.max() == 29
    ends = (spans * torch.arange(1, 101)).amax(1)
    assert ends[:1000].max() == 89
    assert ends[1000:].max() == 59


def test_ratio_of_the_length_of_each_utterance() -> None:
    augment = SpecAug(
        apply_time_warp=False, apply_freq_mask=False, num_time_mask=1, time_mask_width_ratio_range=(0.0, 0.1)
    )
    lengths = torch.tensor([100, 50]).repeat(500)
    widths = augment(torch.ones(1000, 100, 4), lengths, torch.arange(1000)).amax(2).eq(0).sum(1)
    assert widths[::2].max() == 9
    assert widths[1::2].max() == 4


def test_choices_follow_from_the_seed_of_the_utterance_alone(features: torch.Tensor) -> None:
    augment = SpecAug(time_mask_width_range=20, replace_with_zero=False)
    together = augment(features, LENGTHS, SEEDS)
    assert not torch.equal(together, augment(features, LENGTHS, SEEDS + 1))
    for row, length in enumerate(LENGTHS.tolist()):
        alone = augment(features[row : row + 1, :length], LENGTHS[row : row + 1], SEEDS[row : row + 1])
        torch.testing.assert_close(together[row, :length], alone[0], atol=1e-6, rtol=1e-6)


def test_without_seeds_the_generator_of_torch_decides(features: torch.Tensor) -> None:
    augment = SpecAug(time_mask_width_range=20)
    torch.manual_seed(3)
    first, second = augment(features, LENGTHS), augment(features, LENGTHS)
    torch.manual_seed(3)
    assert torch.equal(first, augment(features, LENGTHS))
    assert not torch.equal(first, second)


def test_masked_value_may_be_the_mean_of_the_utterance() -> None:
    augment = SpecAug(
        apply_time_warp=False,
        apply_freq_mask=False,
        time_mask_width_range=(2, 3),
        num_time_mask=1,
        replace_with_zero=False,
    )
    features = torch.arange(10.0).view(1, 10, 1).repeat(1, 1, 3)
    features[:, 8:] = 0
    out = augment(features, torch.tensor([8]), torch.tensor([5]))
    assert (out == 3.5).sum() == 6


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        ({}, "one of time_mask_width_range"),
        ({"time_mask_width_range": [5, 2]}, "two increasing numbers"),
        ({"apply_time_warp": False, "apply_freq_mask": False, "apply_time_mask": False}, "specaug: null"),
    ],
)
def test_mistakes_are_named(conf: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        SpecAug(**conf)
