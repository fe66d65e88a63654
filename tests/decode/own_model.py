"""A user's own model classes: one that changes the hybrid model, one that can only be trained."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from tympan.models.hybrid import HybridModel
from tympan.models.loss import Loss


class GreedyFirst(HybridModel):
    searches = ("ctc_greedy", "joint")


class OnlyTrained(nn.Module):
    def __init__(self, *, token_list: list[str], encoder: nn.Module, ctc: nn.Module, **others: Any) -> None:
        super().__init__()
        self.encoder = encoder
        self.ctc = ctc

    def forward(self, speech: Tensor, speech_lengths: Tensor, text: Tensor, text_lengths: Tensor) -> Loss:
        raise NotImplementedError
