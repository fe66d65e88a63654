"""Check Kaldi's options: the range of each number, and how audio is split into frames."""

from __future__ import annotations

import dataclasses
import math
import typing
from typing import TYPE_CHECKING, Annotated

from tympan.config.range import FINITE, Range
from tympan.errors import UserError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Count = Annotated[int, Range(0, 1_000_000)]
Size = Annotated[float, Range(0, 1_000_000)]
Amount = Annotated[float, Range(-1_000_000, 1_000_000)]


def check_ranges(options: DataclassInstance) -> None:
    """UserError for a number outside of the range of its annotation, and for nan and infinity."""
    hints = typing.get_type_hints(type(options), include_extras=True)
    for item in dataclasses.fields(options):
        declared = [one for one in getattr(hints[item.name], "__metadata__", ()) if isinstance(one, Range)]
        if fault := (declared[0] if declared else FINITE).fault(getattr(options, item.name)):
            raise UserError(f"--{item.name.replace('_', '-')} {fault}")


def check_framing(sample_frequency: float, *, frame_length: float, frame_shift: float) -> None:
    """Lengths in ms. A window must have at least two samples and shift by at least one, as in Kaldi."""
    if not 0 < sample_frequency < math.inf:
        raise UserError(f"--sample-frequency={sample_frequency:g} must be above 0")
    for name, value, samples in (("frame-length", frame_length, 2), ("frame-shift", frame_shift, 1)):
        if not samples <= sample_frequency * 0.001 * value < math.inf:
            raise UserError(
                f"--{name}={value:g} ms: too short: at {sample_frequency:g} Hz it must be at least {samples} samples"
            )
