"""Connectionist temporal classification: projection and loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from tympan.config.range import Range
from tympan.errors import UserError
from tympan.models.bayes_risk_ctc import BayesRisk
from tympan.models.ctc_loss import ctc_loss
from tympan.nn.dropout import Dropout
from tympan.nn.full_precision import at_least_float32, full_precision

_BLANK = "<blank>"


class Ctc(nn.Module):
    """`ctc_conf`. The loss is computed in at least float32, independent of the model's precision.

    `brctc` is Bayes risk CTC; `builtin2` and `gtnctc` compute the same loss as `builtin`. Differs from ESPnet2 on
    purpose: dropout is disabled in evaluation.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        encoder_output_size: int,
        dropout_rate: Annotated[float, Range(0, below=1)] = 0.0,
        ctc_type: Literal["builtin", "builtin2", "gtnctc", "brctc"] = "builtin",
        reduce: bool = True,
        ignore_nan_grad: bool | None = None,
        zero_infinity: bool = True,
        brctc_risk_strategy: Literal["exp", "exp_rel"] = "exp",
        brctc_group_strategy: Literal["end", "end_mean"] = "end",
        brctc_risk_factor: Annotated[float, Range(-1_000, 1_000)] = 0.0,
    ) -> None:
        super().__init__()
        if not reduce:
            raise UserError(
                "ctc_conf reduce: false gives one loss per utterance, which training does not support; use true"
            )
        self.ctc_lo = nn.Linear(encoder_output_size, vocab_size)
        self.dropout = Dropout(dropout_rate)
        self.risk = None
        if ctc_type == "brctc":
            self.risk = BayesRisk(brctc_risk_strategy, brctc_group_strategy, brctc_risk_factor)
        self.zero_infinity = zero_infinity if ignore_nan_grad is None else ignore_nan_grad

    def forward(self, out: Tensor, lengths: Tensor, text: Tensor, text_lengths: Tensor, *, blank_id: int = 0) -> Tensor:
        """(batch,) losses. out (batch, time, size); text (batch, length) may have any value beyond its lengths."""
        logits = self.ctc_lo(self.dropout(out))
        with full_precision(logits):
            if self.risk is not None:
                return self.risk(at_least_float32(logits), lengths, text.clamp(min=0), text_lengths, blank_id=blank_id)
            return ctc_loss(
                at_least_float32(logits),
                lengths,
                text.clamp(min=0),
                text_lengths,
                blank_id=blank_id,
                zero_infinity=self.zero_infinity,
            )

    def softmax(self, out: Tensor) -> Tensor:
        """(batch, time, vocabulary) posteriors."""
        return F.softmax(self.ctc_lo(out), dim=-1)

    def log_softmax(self, out: Tensor) -> Tensor:
        """(batch, time, vocabulary) log posteriors, in at least float32."""
        return F.log_softmax(at_least_float32(self.ctc_lo(out)), dim=-1)

    def argmax(self, out: Tensor) -> Tensor:
        """(batch, time): the best token of every frame."""
        best: Tensor = self.ctc_lo(out).argmax(-1)
        return best


def find_blank(token_list: Sequence[str], sym_blank: str) -> int:
    """The id of the blank of CTC or a transducer. In a list without `<blank>` it is the first token, as in ESPnet2."""
    if sym_blank in token_list:
        return token_list.index(sym_blank)
    if sym_blank == _BLANK:
        return 0
    raise UserError(f"the token list does not contain the blank '{sym_blank}' (model_conf sym_blank)")
