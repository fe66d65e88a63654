"""How audio is cut into frames: what its options may be."""

from __future__ import annotations

import math

from tympan.errors import UserError


def check_framing(sample_frequency: float, *, frame_length: float, frame_shift: float) -> None:
    """Lengths in ms. A window is at least two samples long and moves by at least one, as Kaldi asks."""
    if not 0 < sample_frequency < math.inf:
        raise UserError(f"--sample-frequency={sample_frequency:g} must be above 0")
    for name, value, samples in (("frame-length", frame_length, 2), ("frame-shift", frame_shift, 1)):
        if not samples <= sample_frequency * 0.001 * value < math.inf:
            raise UserError(
                f"--{name}={value:g} ms: at {sample_frequency:g} Hz a frame needs {samples} samples or more"
            )
