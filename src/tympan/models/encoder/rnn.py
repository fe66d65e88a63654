"""The RNN encoder, with ESPnet2's options and parameter names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from torch import Tensor, nn

from tympan.config.range import Range
from tympan.models.encoder.output import EncoderOutput
from tympan.nn.masks import length_mask
from tympan.nn.rnn import PlainRnn, ProjectedRnn, build_rnn
from tympan.nn.typed_torch import ModuleList


class RnnEncoder(nn.Module):
    """`encoder: rnn`. `subsample` has one factor per layer (missing ones are 1); it needs `use_projection`."""

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
        subsample: Annotated[Sequence[int] | None, Range(1, 1_000)] = (2, 2, 1, 1),
    ) -> None:
        super().__init__()
        self.output_size = output_size
        factors = list(subsample or ())[:num_layers]
        rnn = build_rnn(
            rnn_type,
            use_projection=use_projection,
            input_size=input_size,
            hidden_size=hidden_size,
            output_size=output_size,
            num_layers=num_layers,
            is_bidirectional=bidirectional,
            dropout_rate=dropout,
            subsample=factors + [1] * (num_layers - len(factors)),
        )
        self.enc: ModuleList[ProjectedRnn | PlainRnn] = ModuleList([rnn])

    def forward(self, features: Tensor, lengths: Tensor) -> EncoderOutput:
        """features (batch, time, input size)."""
        x, lengths = self.enc[0](features, lengths)
        return EncoderOutput(x * length_mask(lengths, x.size(1)).unsqueeze(-1), lengths)

    def output_lengths(self, lengths: Tensor) -> Tensor:
        """Number of output frames for a number of input frames."""
        return self.enc[0].output_lengths(lengths)
