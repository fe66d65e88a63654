"""The output of an encoder."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class EncoderOutput:
    """`out` (batch, time, size), `lengths` (batch,), and the outputs of inner layers for intermediate CTC."""

    out: Tensor
    lengths: Tensor
    intermediate: tuple[tuple[int, Tensor], ...] = ()
    """(layer number from 1, output (batch, time, size))."""
