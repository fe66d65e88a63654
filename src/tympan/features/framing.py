"""Check the options for splitting audio into frames."""

from __future__ import annotations

import math

from tympan.errors import UserError


def check_framing(sample_frequency: float, *, frame_length: float, frame_shift: float) -> None:
    """Lengths in ms. A window must have at least two samples and shift by at least one, as in Kaldi."""
    if not 0 < sample_frequency < math.inf:
        raise UserError(f"--sample-frequency={sample_frequency:g} must be above 0")
    for name, value, samples in (("frame-length", frame_length, 2), ("frame-shift", frame_shift, 1)):
        if not samples <= sample_frequency * 0.001 * value < math.inf:
            raise UserError(
                f"--{name}={value:g} ms: too short: at {sample_frequency:g} Hz it must be at least {samples} samples"
            )
