"""VGG-like input layers of RNN encoders, which reduce the time axis to a quarter.

Shapes: features (batch, time, channels * bands) -> (batch, ceil(time / 4), 128 * ceil(bands / 4)).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tympan.nn.masks import length_mask


class Vgg2l(nn.Module):
    """Two blocks of two convolutions and 2 x 2 max pooling.

    The convolutions see one frame beyond the end, so padding is zeroed after each. Zeros do not change a maximum over
    ReLU outputs, so the last frames of an utterance don't depend on padding.
    """

    def __init__(self, in_channel: int = 1) -> None:
        super().__init__()
        self.in_channel = in_channel
        self.conv1_1 = nn.Conv2d(in_channel, 64, 3, padding=1)
        self.conv1_2 = nn.Conv2d(64, 64, 3, padding=1)
        self.conv2_1 = nn.Conv2d(64, 128, 3, padding=1)
        self.conv2_2 = nn.Conv2d(128, 128, 3, padding=1)

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.unflatten(features, -1, (self.in_channel, -1)).transpose(1, 2)  # (batch, channels, time, bands)
        for first, second in ((self.conv1_1, self.conv1_2), (self.conv2_1, self.conv2_2)):
            mask = length_mask(lengths, x.size(2))[:, None, :, None]
            x = F.relu(first(x)) * mask
            x = F.relu(second(x)) * mask
            x = F.max_pool2d(x, 2, stride=2, ceil_mode=True)
            lengths = _halved(lengths)
        return x.transpose(1, 2).flatten(2), lengths

    def output_size(self, input_size: int) -> int:
        """Number of features per frame."""
        bands = input_size // self.in_channel
        return 128 * ((bands + 3) // 4)

    def output_lengths(self, lengths: Tensor) -> Tensor:
        return _halved(_halved(lengths))


def _halved(lengths: Tensor) -> Tensor:
    return torch.div(lengths + 1, 2, rounding_mode="floor")
