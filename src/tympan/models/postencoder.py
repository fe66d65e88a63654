"""Modules after the encoder, with ESPnet2's options and parameter names."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from tympan.config.range import Range
from tympan.nn.dropout import Dropout


class LengthAdaptor(nn.Module):
    """`postencoder: length_adaptor`: convolutions that halve the number of frames (Gallego et al. 2021).

    `input_layer: linear` projects the frames to `output_size` first. `return_int_enc` has no effect in recognition.
    """

    def __init__(
        self,
        *,
        input_size: int,
        length_adaptor_n_layers: Annotated[int, Range(0, 10)] = 0,
        input_layer: Literal["linear"] | None = None,
        output_size: Annotated[int | None, Range(1, 1_000_000)] = None,
        dropout_rate: Annotated[float, Range(0, below=1)] = 0.1,
        return_int_enc: bool = False,
    ) -> None:
        super().__init__()
        self.output_size = output_size if input_layer == "linear" and output_size is not None else input_size
        self.embed = None
        if input_layer == "linear":
            size = self.output_size
            self.embed = nn.Sequential(nn.Linear(input_size, size), nn.LayerNorm(size), Dropout(dropout_rate))
        self.count = length_adaptor_n_layers
        layers: list[nn.Module] = []
        for _ in range(length_adaptor_n_layers):
            layers += [nn.Conv1d(self.output_size, self.output_size, 2, 2), nn.ReLU()]
        self.length_adaptor = nn.Sequential(*(layers or [nn.Identity()]))

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """(batch, frames, size) and lengths -> the same of the output. A frame that lacks its pair is dropped."""
        x = x if self.embed is None else self.embed(x)
        missing = 2**self.count - x.size(1)
        x = nn.functional.pad(x, (0, 0, 0, missing)) if missing > 0 else x
        return self.length_adaptor(x.transpose(1, 2)).transpose(1, 2), self.output_lengths(lengths)

    def output_lengths(self, lengths: Tensor) -> Tensor:
        """Number of output frames for a number of encoder frames."""
        return torch.div(lengths, 2**self.count, rounding_mode="floor")
