"""CTC forced alignment: which frames each token of a given text takes, and how sure the model is of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

NEVER = float("-inf")

BLOCK_CELLS = 4_000_000
"""Frames times states whose scores are laid out at once: of a long recording they would fill gigabytes."""


@dataclass(frozen=True)
class AlignedToken:
    """Frames [start, end) of a token, and its highest posterior there."""

    start: int
    end: int
    confidence: float


@dataclass(frozen=True)
class Aligned:
    """The best alignment of a text, and its log probability (-inf: the text does not fit into the frames)."""

    tokens: list[AlignedToken]
    log_prob: float


@torch.inference_mode()
def align_tokens(
    log_probs: Tensor, lengths: Tensor, texts: Sequence[Sequence[int]], *, blank_id: int
) -> list[Aligned | None]:
    """Viterbi over CTC's states (blank, token, blank, token, ... blank), all utterances and states at once.

    log_probs: (U, T, V). None where a text has more tokens than its utterance has frames to hold.
    """
    states, last_state = _states(texts, blank_id=blank_id, device=log_probs.device)
    may_skip = _may_skip(states, blank_id=blank_id)
    frames = log_probs.size(1)
    moves = torch.zeros(len(texts), frames, states.size(1), dtype=torch.int8, device=log_probs.device)
    score = torch.full(states.shape, NEVER, dtype=torch.float64, device=log_probs.device)
    score[:, :2] = 0.0
    for frame, emission in enumerate(_emissions(log_probs, states)):
        if frame == 0:
            score = score + emission
            continue
        step = _shift(score, 1)
        skip = _shift(score, 2).masked_fill(~may_skip, NEVER)
        best, move = torch.stack([score, step, skip]).max(0)
        goes_on = (frame < lengths).unsqueeze(1)
        score = torch.where(goes_on, best + emission, score)
        moves[:, frame] = torch.where(goes_on, move, 0).to(torch.int8)
    return [
        _trace(moves[u, : int(lengths[u])], score[u], log_probs[u], last=last_state[u], text=text)
        for u, text in enumerate(texts)
    ]


def _emissions(log_probs: Tensor, states: Tensor) -> Iterator[Tensor]:
    """(U, states) of every frame, in double precision."""
    size = max(1, BLOCK_CELLS // states.numel())
    for block in log_probs.split(size, dim=1):
        yield from block.gather(2, states.unsqueeze(1).expand(-1, block.size(1), -1)).double().unbind(1)


def _states(texts: Sequence[Sequence[int]], *, blank_id: int, device: torch.device) -> tuple[Tensor, list[int]]:
    count = max(2 * max(map(len, texts)) + 1, 2)
    states = torch.full((len(texts), count), blank_id)
    for row, text in enumerate(texts):
        states[row, 1 : 2 * len(text) : 2] = torch.tensor(text, dtype=torch.long)
    return states.to(device), [2 * len(text) for text in texts]


def _may_skip(states: Tensor, *, blank_id: int) -> Tensor:
    """The blank before a token may be left out, unless the token before it is the same."""
    before = torch.nn.functional.pad(states[:, :-2], (2, 0), value=blank_id)
    return (states != blank_id) & (states != before)


def _shift(score: Tensor, by: int) -> Tensor:
    return torch.nn.functional.pad(score, (by, 0), value=NEVER)[:, : score.size(1)]


def _trace(moves: Tensor, score: Tensor, log_probs: Tensor, *, last: int, text: Sequence[int]) -> Aligned | None:
    state = last
    if text and score[last - 1] > score[last]:
        state = last - 1
    if score[state] == NEVER:
        return None
    log_prob = float(score[state])
    spans: dict[int, tuple[int, int]] = {}
    steps = moves.cpu().numpy()
    for frame in reversed(range(len(steps))):
        if state % 2 == 1:
            spans[state // 2] = (frame, spans.get(state // 2, (0, frame + 1))[1])
        state -= int(steps[frame, state])
    return Aligned(
        tokens=[_token(log_probs[:, number], *spans[place]) for place, number in enumerate(text)], log_prob=log_prob
    )


def _token(log_probs: Tensor, start: int, end: int) -> AlignedToken:
    confidence = float(log_probs[start:end].max().double().exp())
    return AlignedToken(start=start, end=end, confidence=min(confidence, 1.0))
