"""Aligning a text to a recording of any length: encoded piece by piece, aligned as one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from tympan.decode.alignment import Aligned, align_tokens
from tympan.decode.scorer import Encoded


@dataclass(frozen=True)
class TimedAlignment:
    """An alignment with the seconds of its tokens, and in how many frames; None where the text does not fit in."""

    aligned: Aligned | None
    times: tuple[tuple[float, float], ...]
    frames: int


def align_pieces(
    pieces: Iterable[tuple[float, Encoded]], text: Sequence[int], *, blank_id: int, frame_shift_s: float
) -> TimedAlignment:
    """`pieces`: (when it begins, its encoding) in order; each is dropped before the next one is made.

    A piece makes a frame or so less than its length has room for, so times count from its own beginning.
    """
    tokens = sorted({blank_id, *text})  # of thousands in the vocabulary
    parts, starts = [], []
    for start_s, encoded in pieces:
        assert encoded.log_probs is not None
        log_probs = encoded.log_probs[0]
        parts.append(log_probs.index_select(1, torch.tensor(tokens, device=log_probs.device)))
        starts += [(start_s, frame) for frame in range(len(log_probs))]
    column = {token: place for place, token in enumerate(tokens)}
    (aligned,) = align_tokens(
        torch.cat(parts).unsqueeze(0),
        torch.tensor([len(starts)], device=parts[0].device),
        [[column[token] for token in text]],
        blank_id=column[blank_id],
    )

    def seconds(frame: int, *, is_end: bool) -> float:
        start_s, within = starts[frame]
        return round(start_s + (within + is_end) * frame_shift_s, 3)

    times = tuple(
        (seconds(token.start, is_end=False), seconds(token.end - 1, is_end=True))
        for token in (aligned.tokens if aligned is not None else [])
    )
    return TimedAlignment(aligned, times, len(starts))
