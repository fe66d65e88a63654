"""Time derivatives of features, as in Kaldi's add-deltas."""

from __future__ import annotations

import numpy as np

from tympan.features.arrays import Floats


def add_deltas(features: Floats, *, order: int = 2, window: int = 2) -> Floats:
    """(frames, dim) -> (frames, dim * (order + 1)) float32.

    Each order is one filter over the features (5 and 9 taps by default), with the first and the last
    frame repeated beyond the edges. This differs from the delta of a delta at the edges.
    """
    frames = len(features)
    slopes = np.arange(-window, window + 1) / sum(step * step for step in range(-window, window + 1))
    taps = np.ones(1)
    parts = [features]
    for _ in range(order):
        taps = np.convolve(taps, slopes)
        reach = len(taps) // 2
        padded = np.pad(features, ((reach, reach), (0, 0)), mode="edge") if frames else features
        parts.append(sum(tap * padded[shift : shift + frames] for shift, tap in enumerate(taps.astype(np.float32))))
    return np.concatenate(parts, axis=1).astype(np.float32, copy=False)
