"""The joint network of a transducer: from an encoder frame and a prediction to the logits of what comes next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from torch import Tensor, nn

from tympan.config.range import Range
from tympan.errors import UserError
from tympan.nn.joint_activation import JointActivation, joint_activation


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
        joint_activation_type: JointActivation = "tanh",
        lin_dec_bias: bool = True,
        ftswish_threshold: Annotated[float, Range(below=0)] = -0.2,
        ftswish_mean_shift: Annotated[float, Range(-1_000, 1_000)] = 0.0,
        hardtanh_min_val: Annotated[float, Range(-1_000, 1_000)] = -1.0,
        hardtanh_max_val: Annotated[float, Range(-1_000, 1_000)] = 1.0,
        leakyrelu_neg_slope: Annotated[float, Range(-1_000, 1_000)] = 0.01,
        smish_alpha: Annotated[float, Range(-1_000, 1_000)] = 1.0,
        smish_beta: Annotated[float, Range(-1_000, 1_000)] = 1.0,
        softplus_beta: Annotated[float, Range(-1_000, 1_000)] = 1.0,
        softplus_threshold: Annotated[float, Range(-1_000, 1_000)] = 20,
        swish_beta: Annotated[float, Range(-1_000, 1_000)] = 1.0,
        tdt_durations: Annotated[Sequence[int], Range(0, 1_000)] = (),
    ) -> None:
        super().__init__()
        if tdt_durations and (sorted(set(tdt_durations)) != list(tdt_durations) or 1 not in tdt_durations):
            raise UserError(
                f"joint_net_conf tdt_durations is {list(tdt_durations)}: durations must increase, and one must be 1, "
                "so that a blank can end at every frame, such as [0, 1, 2, 3, 4]"
            )
        if hardtanh_min_val >= hardtanh_max_val:
            raise UserError(
                f"joint_net_conf hardtanh_min_val is {hardtanh_min_val}, hardtanh_max_val is {hardtanh_max_val}: "
                "the first must be smaller"
            )
        self.vocab_size = vocab_size
        self.durations = tuple(tdt_durations)
        self.lin_enc = nn.Linear(encoder_size, joint_space_size)
        self.lin_dec = nn.Linear(decoder_size, joint_space_size, bias=lin_dec_bias)
        self.lin_out = nn.Linear(joint_space_size, vocab_size + len(self.durations))
        # ESPnet2's `mish` is torch's, which has no softplus_beta and softplus_threshold.
        self.joint_activation = joint_activation(
            joint_activation_type,
            ftswish_threshold=ftswish_threshold,
            ftswish_mean_shift=ftswish_mean_shift,
            hardtanh_min_val=hardtanh_min_val,
            hardtanh_max_val=hardtanh_max_val,
            leakyrelu_neg_slope=leakyrelu_neg_slope,
            smish_alpha=smish_alpha,
            smish_beta=smish_beta,
            swish_beta=swish_beta,
        )

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
