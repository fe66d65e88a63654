"""The VGG-RNN encoder, with ESPnet2's options and parameter names."""

from __future__ import annotations

from typing import Annotated, Literal

from torch import Tensor, nn

from tympan.config.range import Range
from tympan.errors import UserError
from tympan.models.encoder.output import EncoderOutput
from tympan.nn.masks import length_mask
from tympan.nn.rnn import PlainRnn, ProjectedRnn, build_rnn
from tympan.nn.typed_torch import ModuleList
from tympan.nn.vgg import Vgg2l


class VggRnnEncoder(nn.Module):
    """`encoder: vgg_rnn`. `in_channel` is the number of concatenated feature streams (3 with deltas)."""

    def __init__(
        self,
        *,
        input_size: int,
        rnn_type: Literal["lstm", "gru"] = "lstm",
        bidirectional: bool = True,
        use_projection: bool = True,
        num_layers: Annotated[int, Range(1, 1_000)] = 4,
        hidden_size: Annotated[int, Range(1, 1_000_000)] = 320,
        output_size: Annotated[int, Range(1, 1_000_000)] = 320,
        dropout: Annotated[float, Range(0, below=1)] = 0.0,
        in_channel: Annotated[int, Range(1, 10_000)] = 1,
    ) -> None:
        super().__init__()
        if input_size % in_channel:
            raise UserError(
                f"the feature size {input_size} must be a multiple of encoder_conf in_channel, which is {in_channel}"
            )
        self.output_size = output_size
        vgg = Vgg2l(in_channel)
        rnn = build_rnn(
            rnn_type,
            use_projection=use_projection,
            input_size=vgg.output_size(input_size),
            hidden_size=hidden_size,
            output_size=output_size,
            num_layers=num_layers,
            is_bidirectional=bidirectional,
            dropout_rate=dropout,
            subsample=[1] * num_layers,
        )
        self.enc: ModuleList[Vgg2l | ProjectedRnn | PlainRnn] = ModuleList([vgg, rnn])

    def forward(self, features: Tensor, lengths: Tensor) -> EncoderOutput:
        """features (batch, time, input size), zero beyond the lengths (batch,)."""
        x = features
        for part in self.enc:
            x, lengths = part(x, lengths)
        return EncoderOutput(x * length_mask(lengths, x.size(1)).unsqueeze(-1), lengths)

    def output_lengths(self, lengths: Tensor) -> Tensor:
        """Number of output frames for a number of input frames."""
        for part in self.enc:
            lengths = part.output_lengths(lengths)
        return lengths
