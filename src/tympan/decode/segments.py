"""Cut recordings into segments, and plan which segments are decoded together.

A long recording is cut where it is quiet, so that an hour of speech needs the memory of a minute.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from tympan.data.kaldi_dir import Segment

FRAME_S = 0.01
SMOOTHING_S = 0.3


def cut_at_pauses(samples: np.ndarray, rate: int, *, max_s: float, recording: str = "") -> list[Segment]:
    """Segments of samples (time,), at most `max_s` seconds long. Each ends where its second half is quietest.

    The last one is at least a quarter of `max_s` long, because a few frames could not be decoded.
    """
    longest = int(max_s * rate)
    ends: list[int] = []
    if len(samples) > longest:
        hop = max(1, int(FRAME_S * rate))
        loudness = _loudness(samples, hop)
        start = 0
        while len(samples) - start > longest:
            latest = min(start + longest, len(samples) - longest // 4)
            first, last = (start + longest // 2) // hop + 1, latest // hop
            window = loudness[first:last]
            start = (first + _quietest(window)) * hop if len(window) else latest
            ends.append(start)
    bounds = [0, *ends, len(samples)]
    return [Segment(recording, start / rate, end / rate) for start, end in itertools.pairwise(bounds)]


def take_segment(segment: Segment, samples: np.ndarray, rate: int) -> np.ndarray:
    """The samples of a segment. Its bounds are sample indices divided by the rate, so the rounding is exact."""
    end = None if segment.end_s is None else round(segment.end_s * rate)
    return samples[round(segment.start_s * rate) : end]


def plan_by_length(lengths: Sequence[float], *, batch_size: int, max_total: float) -> list[list[int]]:
    """Which utterances are decoded together: indices into `lengths`, longest first.

    A batch has at most `batch_size` utterances and a total length of at most `max_total` with padding. An utterance
    longer than `max_total` is a batch of its own.
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batches:
            batch = batches[-1]
            if len(batch) < batch_size and lengths[batch[0]] * (len(batch) + 1) <= max_total:
                batch.append(index)
                continue
        batches.append([index])
    return batches


def _quietest(loudness: np.ndarray) -> int:
    """The middle of the longest run of quietest frames. Its first frame would be too close to the speech before it."""
    quiet = np.flatnonzero(loudness == loudness.min())
    runs = np.split(quiet, np.flatnonzero(np.diff(quiet) > 1) + 1)
    run = max(runs, key=len)
    return int(run[len(run) // 2])


def _loudness(samples: np.ndarray, hop: int) -> np.ndarray:
    """Mean energy around the start of each frame. The mean ignores short gaps between two sounds."""
    frames = len(samples) // hop
    rows = samples[: frames * hop].reshape(frames, hop)
    energy = np.einsum("th,th->t", rows, rows, dtype=np.float64) / hop  # without a copy in float64
    half = max(1, int(SMOOTHING_S / FRAME_S / 2))
    sums = np.concatenate([[0.0], np.cumsum(energy)])
    index = np.arange(frames)
    low, high = np.clip(index - half, 0, frames), np.clip(index + half, 0, frames)
    return np.asarray((sums[high] - sums[low]) / np.maximum(high - low, 1))
