"""Cutting a long recording where it is quiet, so that an hour of speech needs the memory of a minute."""

from __future__ import annotations

import numpy as np

FRAME_S = 0.01
SMOOTHING_S = 0.3


def cut_at_pauses(samples: np.ndarray, rate: int, *, max_s: float) -> list[tuple[int, int]]:
    """Pieces [start, end) of samples (time,), at most `max_s` long: each ends where its second half is quietest.

    The last one is no shorter than a quarter of that: a rest of some frames could not be decoded.
    """
    longest = int(max_s * rate)
    if len(samples) <= longest:
        return [(0, len(samples))]
    hop = max(1, int(FRAME_S * rate))
    loudness = _loudness(samples, hop)
    pieces, start = [], 0
    while len(samples) - start > longest:
        latest = min(start + longest, len(samples) - longest // 4)
        first, last = (start + longest // 2) // hop + 1, latest // hop
        window = loudness[first:last]
        end = (first + _quietest(window)) * hop if len(window) else latest
        pieces.append((start, end))
        start = end
    return [*pieces, (start, len(samples))]


def _quietest(loudness: np.ndarray) -> int:
    """The middle of the longest run of digital silence: its first frame would lie right behind speech."""
    places = np.flatnonzero(loudness == loudness.min())
    runs = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)
    run = max(runs, key=len)
    return int(run[len(run) // 2])


def _loudness(samples: np.ndarray, hop: int) -> np.ndarray:
    """Mean energy around each frame's beginning: a short gap between two sounds is no pause."""
    frames = len(samples) // hop
    rows = samples[: frames * hop].reshape(frames, hop)
    energy = np.einsum("th,th->t", rows, rows, dtype=np.float64) / hop  # without a copy in float64
    half = max(1, int(SMOOTHING_S / FRAME_S / 2))
    sums = np.concatenate([[0.0], np.cumsum(energy)])
    place = np.arange(frames)
    low, high = np.clip(place - half, 0, frames), np.clip(place + half, 0, frames)
    return np.asarray((sums[high] - sums[low]) / np.maximum(high - low, 1))
