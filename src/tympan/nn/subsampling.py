"""Two or three convolutions that subsample the features in time, a projection, and the positional encoding.

Shapes: features (batch, time, input size) -> (batch, shorter time, size).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tympan.errors import UserError
from tympan.nn.frozen import FrozenConv2d, FrozenLinear
from tympan.nn.fused_feed_forward import is_plain_on_cpu
from tympan.nn.fused_subsampling import fused_subsampling
from tympan.nn.position import NoPosition, Positioned
from tympan.nn.typed_torch import before_loading

# Kernel size and stride of each convolution, in time and in frequency.
CONV2D_SHAPES: dict[str, tuple[tuple[int, int], ...]] = {
    "conv2d": ((3, 2), (3, 2)),
    "conv2d1": ((3, 1), (3, 1)),
    "conv2d2": ((3, 2), (3, 1)),
    "conv2d6": ((3, 2), (5, 3)),
    "conv2d8": ((3, 2), (3, 2), (3, 2)),
}
CONV1D_SHAPES: dict[str, tuple[tuple[int, int], ...]] = {
    "conv1d1": ((3, 1), (3, 1)),
    "conv1d2": ((3, 1), (3, 2)),
    "conv1d3": ((3, 1), (5, 3)),
}


TYPICAL_FRAMES = 600
"""Typical number of feature frames in decoding; the layout of frozen weights is optimized for it."""


class Conv2dSubsampling(nn.Module):
    """Convolutions over time and frequency without padding: outputs inside an utterance don't depend on its padding."""

    def __init__(self, kind: str, *, input_size: int, size: int, position: nn.Module) -> None:
        super().__init__()
        self.kind = kind
        self.shape = CONV2D_SHAPES[kind]
        layers: list[nn.Module] = []
        bands = input_size
        for index, (kernel, stride) in enumerate(self.shape):
            layers += [nn.Conv2d(1 if index == 0 else size, size, kernel, stride), nn.ReLU()]
            bands = shortened(bands, kernel, stride)
        if bands < 1:
            raise UserError(
                f"input_layer {kind} needs more than {input_size} values per frame: its convolutions leave none "
                "(input_size, n_mels of frontend_conf, or output_size of preencoder_conf)"
            )
        self.conv = nn.Sequential(*layers)
        self.out: nn.Module = nn.Linear(size * bands, size)
        self.input_size = input_size
        self.pos_enc = position
        before_loading(self, _accept_old_names)

    def saved_names(self) -> dict[str, str]:
        return _saved_names(self.kind, self.pos_enc)

    def freeze(self) -> None:
        """Channels stay last in memory, so the projection expects the channels of each band together."""
        if isinstance(self.out, FrozenLinear):
            return
        assert isinstance(self.out, nn.Linear)
        frames, bands, layers = TYPICAL_FRAMES, self.input_size, []
        convolutions = [layer for layer in self.conv if isinstance(layer, nn.Conv2d)]
        for conv, (kernel, stride) in zip(convolutions, self.shape, strict=True):
            layers.append(FrozenConv2d(conv, frames, bands))
            frames, bands = shortened(frames, kernel, stride), shortened(bands, kernel, stride)
        self.conv = nn.Sequential(*layers)
        by_band = torch.unflatten(self.out.weight, 1, (-1, bands)).transpose(1, 2).flatten(1)
        self.out = FrozenLinear(by_band, self.out.bias)

    def forward(self, x: Tensor) -> Positioned:
        x = _long_enough(x, self.shape)
        if isinstance(self.out, FrozenLinear):
            projected = self.out(self.conv(x.unsqueeze(1)).permute(0, 2, 3, 1).flatten(2))
        elif self._can_fuse(x):
            first, second = self.conv[0], self.conv[2]
            assert isinstance(first, nn.Conv2d)
            assert isinstance(second, nn.Conv2d)
            assert isinstance(self.out, nn.Linear)
            projected = fused_subsampling(x, first, second, self.out)
        else:
            x = self.conv(x.unsqueeze(1))  # (batch, channels, time, bands)
            projected = self.out(x.transpose(1, 2).flatten(2))
        out: Positioned = self.pos_enc(projected)
        return out

    def _can_fuse(self, x: Tensor) -> bool:
        # A linear layer with an adapter does more than a product with its weight.
        is_plain = type(self.out) is nn.Linear
        return is_plain and self.shape == CONV2D_SHAPES["conv2d"] and not x.requires_grad and is_plain_on_cpu(x)

    def output_lengths(self, lengths: Tensor) -> Tensor:
        return _shorten_all(lengths, self.shape)


class Conv1dSubsampling(nn.Module):
    """Convolutions over time without padding."""

    def __init__(self, kind: str, *, input_size: int, size: int, position: nn.Module) -> None:
        super().__init__()
        self.kind = kind
        self.shape = CONV1D_SHAPES[kind]
        layers: list[nn.Module] = []
        for index, (kernel, stride) in enumerate(self.shape):
            layers += [nn.Conv1d(input_size if index == 0 else size, size, kernel, stride), nn.ReLU()]
        self.conv = nn.Sequential(*layers)
        self.out = nn.Linear(size, size)
        self.pos_enc = position
        before_loading(self, _accept_old_names)

    def saved_names(self) -> dict[str, str]:
        return _saved_names(self.kind, self.pos_enc)

    def forward(self, x: Tensor) -> Positioned:
        x = self.conv(_long_enough(x, self.shape).transpose(1, 2))
        out: Positioned = self.pos_enc(self.out(x.transpose(1, 2)))
        return out

    def output_lengths(self, lengths: Tensor) -> Tensor:
        return _shorten_all(lengths, self.shape)


def shortened(length: int, kernel: int, stride: int) -> int:
    """The output length of a convolution without padding."""
    return max((length - kernel) // stride + 1, 0)


def _shorten_all(lengths: Tensor, shape: tuple[tuple[int, int], ...]) -> Tensor:
    for kernel, stride in shape:
        lengths = (torch.div(lengths - kernel, stride, rounding_mode="floor") + 1).clamp(min=0)
    return lengths


def _long_enough(x: Tensor, shape: tuple[tuple[int, int], ...]) -> Tensor:
    """Pad so that at least one frame is computed. The length of an utterance that is too short is still 0."""
    needed = 1
    for kernel, stride in reversed(shape):
        needed = (needed - 1) * stride + kernel
    missing = needed - x.size(1)
    return nn.functional.pad(x, (0, 0, 0, missing)) if missing > 0 else x


_OLD_NAMES = {"out.weight": "out.0.weight", "out.bias": "out.0.bias", "pos_enc.alpha": "out.1.alpha"}
"""Names in ESPnet2 up to 202511, which kept the projection and the position in one sequence `out`, except conv2d8."""


def _saved_names(kind: str, position: nn.Module) -> dict[str, str]:
    is_pair = kind != "conv2d8" and not isinstance(position, NoPosition)
    return _OLD_NAMES if is_pair else {}


def _accept_old_names(module: nn.Module, state: dict[str, Tensor], prefix: str, *rest: object) -> None:
    for new, old in _OLD_NAMES.items():
        if prefix + old in state:
            state[prefix + new] = state.pop(prefix + old)
