"""The joint network of a transducer: from an encoder frame and a prediction to the logits of what comes next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from torch import Tensor, nn

from tympan.config.range import Range
from tympan.errors import UserError
from tympan.nn.activation import get_activation


class JointNetwork(nn.Module):
    """`joint_net_conf`. `forward` takes what `project_frames` and `project_predictions` made, in any leading shape.

    With `tdt_durations` it is that of a token-and-duration transducer (Xu et al. 2023): further outputs, independent
    of the tokens, say how many frames a token or blank takes.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        encoder_size: int,
        decoder_size: int,
        joint_space_size: Annotated[int, Range(1, 1_000_000)] = 256,
        joint_activation_type: Literal["tanh", "relu", "selu", "swish", "hardtanh", "identity"] = "tanh",
        lin_dec_bias: bool = True,
        tdt_durations: Annotated[Sequence[int], Range(0, 1_000)] = (),
    ) -> None:
        super().__init__()
        if tdt_durations and (sorted(set(tdt_durations)) != list(tdt_durations) or 1 not in tdt_durations):
            raise UserError(
                f"joint_net_conf tdt_durations is {list(tdt_durations)}: durations must increase, and one must be 1, "
                "so that a blank can end at every frame, such as [0, 1, 2, 3, 4]"
            )
        self.vocab_size = vocab_size
        self.durations = tuple(tdt_durations)
        self.lin_enc = nn.Linear(encoder_size, joint_space_size)
        self.lin_dec = nn.Linear(decoder_size, joint_space_size, bias=lin_dec_bias)
        self.lin_out = nn.Linear(joint_space_size, vocab_size + len(self.durations))
        self.joint_activation = get_activation(joint_activation_type)

    def forward(self, frames: Tensor, predictions: Tensor) -> Tensor:
        """Logits (..., V), or (..., V + durations)."""
        logits: Tensor = self.lin_out(self.joint_activation(frames + predictions))
        return logits

    def project_frames(self, out: Tensor) -> Tensor:
        """Encoder output (..., encoder size) -> (..., joint_space_size)."""
        projected: Tensor = self.lin_enc(out)
        return projected

    def project_predictions(self, out: Tensor) -> Tensor:
        """Prediction network output (..., decoder size) -> (..., joint_space_size)."""
        projected: Tensor = self.lin_dec(out)
        return projected
