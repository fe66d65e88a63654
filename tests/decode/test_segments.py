"""Long recordings are cut at pauses, and no part of them is lost."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tympan.decode.segments import cut_at_pauses, take_segment

RATE = 1000


def speech_with_pauses(pauses_s: list[float], *, duration_s: float) -> np.ndarray:
    rng = np.random.default_rng(0)
    samples = rng.normal(0, 0.1, int(duration_s * RATE)).astype(np.float32)
    for middle in pauses_s:
        samples[int((middle - 0.25) * RATE) : int((middle + 0.25) * RATE)] *= 0.01
    return samples


def pieces_of(samples: np.ndarray, *, max_s: float) -> list[tuple[int, int]]:
    """Bounds in samples."""
    segments = cut_at_pauses(samples, RATE, max_s=max_s, recording="a")
    assert {segment.recording for segment in segments} == {"a"}
    joined = np.concatenate([take_segment(segment, samples, RATE) for segment in segments])
    np.testing.assert_array_equal(joined, samples)
    return [(round(segment.start_s * RATE), round((segment.end_s or 0) * RATE)) for segment in segments]


def test_cuts_fall_into_the_pauses() -> None:
    samples = speech_with_pauses([7.0, 15.5, 23.0], duration_s=30)
    pieces = pieces_of(samples, max_s=10)
    cuts = [end / RATE for _, end in pieces[:-1]]
    np.testing.assert_allclose(cuts, [7.0, 15.5, 23.0], atol=0.15)


def test_pieces_are_whole_and_short_enough_without_any_pause() -> None:
    samples = speech_with_pauses([], duration_s=61.3)
    pieces = pieces_of(samples, max_s=10)
    assert pieces[0][0] == 0
    assert pieces[-1][1] == len(samples)
    assert all(end == start for (_, end), (start, _) in itertools.pairwise(pieces))
    assert all(0 < end - start <= 10 * RATE for start, end in pieces)


def test_a_short_recording_is_not_cut() -> None:
    assert pieces_of(np.zeros(500, dtype=np.float32), max_s=1) == [(0, 500)]


def test_a_cut_falls_into_the_middle_of_digital_silence() -> None:
    samples = speech_with_pauses([], duration_s=15)
    samples[6 * RATE : int(6.1 * RATE)] = 0  # a gap between two sounds
    samples[7 * RATE : 9 * RATE] = 0
    ((_, cut), _) = pieces_of(samples, max_s=10)
    assert cut / RATE == pytest.approx(8.0, abs=0.05)


def test_no_last_segment_is_too_short_to_be_decoded() -> None:
    for rest_s in (0.001, 0.02, 0.5):
        samples = speech_with_pauses([9.9], duration_s=10 + rest_s)
        pieces = pieces_of(samples, max_s=10)
        assert len(pieces) == 2
        assert min(end - start for start, end in pieces) >= 2.5 * RATE
