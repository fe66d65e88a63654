"""How features (or tokens) enter an encoder: ESPnet2's `input_layer`."""

from __future__ import annotations

from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor, nn

from tympan.errors import UserError
from tympan.nn.dropout import Dropout
from tympan.nn.position import Positioned
from tympan.nn.subsampling import CONV1D_SHAPES, CONV2D_SHAPES, Conv1dSubsampling, Conv2dSubsampling


class InputSequence(nn.Sequential):
    """Layers that keep the length; the last one may be the positional encoding."""

    def forward(self, x: Tensor) -> Positioned:
        current: Tensor | Positioned = x
        for layer in self:
            current = layer(current)
        return current if isinstance(current, Positioned) else Positioned(current)

    def output_lengths(self, lengths: Tensor) -> Tensor:
        return lengths


class PositionFirst(InputSequence):
    """A positional encoding, then layers without one (ESPnet2's `input_layer: wav2vec`)."""

    def forward(self, x: Tensor) -> Positioned:
        position, *layers = self
        positioned: Positioned = position(x)
        x = positioned.x
        for layer in layers:
            x = layer(x)
        return replace(positioned, x=x)


class InputProjection(nn.Module):
    """A projection without positional encoding (ESPnet2's `input_layer: null` when the sizes differ)."""

    def __init__(self, input_size: int, size: int) -> None:
        super().__init__()
        linear = nn.Linear(input_size, size)
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, x: Tensor) -> Positioned:
        return Positioned(F.linear(x, self.weight, self.bias))

    def output_lengths(self, lengths: Tensor) -> Tensor:
        return lengths


InputLayer = InputSequence | InputProjection | Conv2dSubsampling | Conv1dSubsampling
"""Called with features (batch, time, input size) or tokens (batch, time), it returns `Positioned`."""


def build_input_layer(
    kind: str | None,
    *,
    input_size: int,
    size: int,
    dropout_rate: float,
    position: nn.Module,
    padding_idx: int,
    is_linear_rectified: bool = False,
    is_position_optional: bool = False,
    is_normalized: bool = False,
) -> InputLayer:
    """`is_linear_rectified`: the Transformer encoder has a ReLU after its linear layer.

    `is_position_optional`: without an input layer, ESPnet2's (E-)Branchformer and Transformer encoders add no
    positional encoding (or only a projection); the Conformer adds it. `is_normalized`: `wav2vec` has a normalization.
    """
    if kind in CONV2D_SHAPES:
        return Conv2dSubsampling(kind, input_size=input_size, size=size, position=position)
    if kind in CONV1D_SHAPES:
        return Conv1dSubsampling(kind, input_size=input_size, size=size, position=position)
    if kind == "linear":
        rectifier = [nn.ReLU()] if is_linear_rectified else []
        return InputSequence(
            nn.Linear(input_size, size), nn.LayerNorm(size), Dropout(dropout_rate), *rectifier, position
        )
    if kind == "embed":
        # ESPnet2's default of -1 means the last row.
        return InputSequence(nn.Embedding(input_size, size, padding_idx=padding_idx), position)
    if kind == "wav2vec":
        if input_size != size:
            raise UserError(
                f"encoder_conf input_layer: wav2vec needs an input of output_size, {size}, but its size is "
                f"{input_size}; use preencoder: linear with output_size={size}"
            )
        return PositionFirst(position, nn.LayerNorm(size) if is_normalized else nn.Identity(), Dropout(dropout_rate))
    assert kind is None, kind
    if not is_position_optional:
        return InputSequence(position)
    return InputSequence() if input_size == size else InputProjection(input_size, size)
