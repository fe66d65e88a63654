"""`frontend: wav2vec_cnn`: the convolutions of wav2vec 2.0, with ESPnet2's options and parameter names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from tympan.config.range import Range
from tympan.errors import UserError
from tympan.features.frontend import parse_rate
from tympan.models.pretrained.speech_encoder import masked_group_norm, normalized
from tympan.nn.masks import length_mask
from tympan.nn.typed_torch import ModuleList


class Wav2VecCnnFrontend(nn.Module):
    """`shapes` has channels, kernel size and stride of each convolution.

    Differs from ESPnet2: padding never changes a result. `layer_norm_cls` chooses between two forms of the same
    normalization, so it has no effect.
    """

    def __init__(
        self,
        norm_mode: Literal["group_norm", "layer_norm"],
        conv_mode: Literal["standard", "depth_only", "depth_sep"],
        bias: bool,
        shapes: Annotated[Sequence[Sequence[int]], Range(1, 100_000)] = (
            (512, 10, 5),
            (512, 3, 2),
            (512, 3, 2),
            (512, 3, 2),
            (512, 3, 2),
            (512, 2, 2),
            (512, 2, 2),
        ),
        fs: Annotated[int | str, Range(100, 1_000_000)] = 16000,
        normalize_audio: bool = False,
        normalize_output: bool = False,
        layer_norm_cls: Literal["transposed", "dim1"] = "transposed",
    ) -> None:
        super().__init__()
        parse_rate(fs)
        if conv_mode == "depth_sep":
            raise UserError("frontend_conf conv_mode: depth_sep raises an error in ESPnet2 too; use standard")
        self.normalizes_audio = normalize_audio
        channels = [1, *(int(shape[0]) for shape in shapes)]
        self.layers: ModuleList[ConvLayer] = ModuleList(
            ConvLayer(
                channels[number],
                channels[number + 1],
                kernel=int(shape[1]),
                stride=int(shape[2]),
                bias=bias,
                groups=channels[number] if conv_mode == "depth_only" else 1,
                norm="layer" if norm_mode == "layer_norm" else "group" if number == 0 else None,
            )
            for number, shape in enumerate(shapes)
        )
        self.output_size = channels[-1]
        self.final_norm: nn.Module = nn.LayerNorm(self.output_size) if normalize_output else nn.Identity()
        self.hop_length = 1
        for layer in self.layers:
            self.hop_length *= layer.stride

    def forward(self, speech: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Features, zero beyond their lengths, and the lengths."""
        speech = speech if speech.dim() == 2 else speech[:, :, 0]
        speech = normalized(speech, lengths) if self.normalizes_audio else speech
        x = speech.masked_fill(~length_mask(lengths, speech.size(1)), 0.0).unsqueeze(1)
        for layer in self.layers:
            x, lengths = layer(x, lengths)
        x = self.final_norm(x.transpose(1, 2))
        return x.masked_fill(~length_mask(lengths, x.size(1)).unsqueeze(-1), 0.0), lengths

    def output_lengths(self, lengths: Tensor) -> Tensor:
        """Number of frames for a number of samples."""
        for layer in self.layers:
            lengths = layer.output_lengths(lengths)
        return lengths


class ConvLayer(nn.Module):
    """Convolution, normalization and GELU."""

    def __init__(
        self,
        size: int,
        channels: int,
        *,
        kernel: int,
        stride: int,
        bias: bool,
        groups: int,
        norm: Literal["layer", "group"] | None,
    ) -> None:
        super().__init__()
        self.kernel, self.stride = kernel, stride
        self.conv = nn.Conv1d(size, channels, kernel, stride, bias=bias, groups=groups)
        nn.init.kaiming_normal_(self.conv.weight)
        self.layer_norm: nn.LayerNorm | nn.GroupNorm | None = None
        if norm is not None:
            self.layer_norm = nn.LayerNorm(channels) if norm == "layer" else nn.GroupNorm(channels, channels)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """x (batch, channels, time)."""
        x, lengths = self.conv(x), self.output_lengths(lengths)
        if isinstance(self.layer_norm, nn.GroupNorm):
            x = masked_group_norm(self.layer_norm, x, lengths)
        elif self.layer_norm is not None:
            x = self.layer_norm(x.transpose(1, 2)).transpose(1, 2)
        return nn.functional.gelu(x), lengths

    def output_lengths(self, lengths: Tensor) -> Tensor:
        return (torch.div(lengths - self.kernel, self.stride, rounding_mode="floor") + 1).clamp(min=0)
