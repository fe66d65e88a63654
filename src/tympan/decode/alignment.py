"""CTC forced alignment: which frames each token of a given text takes, and how sure the model is of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

NEVER = float("-inf")


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
    emissions = log_probs.gather(2, states.unsqueeze(1).expand(-1, log_probs.size(1), -1)).double()
    may_skip = _may_skip(states, blank_id=blank_id)
    score = torch.full_like(emissions[:, 0], NEVER)
    score[:, :2] = emissions[:, 0, :2]
    moves = torch.zeros(emissions.shape, dtype=torch.int8, device=emissions.device)
    for frame in range(1, emissions.size(1)):
        step = _shift(score, 1)
        skip = _shift(score, 2).masked_fill(~may_skip, NEVER)
        best, move = torch.stack([score, step, skip]).max(0)
        goes_on = (frame < lengths).unsqueeze(1)
        score = torch.where(goes_on, best + emissions[:, frame], score)
        moves[:, frame] = torch.where(goes_on, move, 0).to(torch.int8)
    return [
        _trace(moves[u], score[u], emissions[u], frames=int(lengths[u]), last=last_state[u], count=len(texts[u]))
        for u in range(len(texts))
    ]


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


def _trace(moves: Tensor, score: Tensor, emissions: Tensor, *, frames: int, last: int, count: int) -> Aligned | None:
    state = last
    if count and score[last - 1] > score[last]:
        state = last - 1
    if score[state] == NEVER:
        return None
    log_prob = float(score[state])
    path = []
    for step in reversed(moves[:frames].tolist()):
        path.append(state)
        state -= step[state]
    path.reverse()
    tokens = []
    for token in range(count):
        places = [frame for frame, at in enumerate(path) if at == 2 * token + 1]
        start, end = places[0], places[-1] + 1
        confidence = float(emissions[start:end, 2 * token + 1].max().exp())
        tokens.append(AlignedToken(start=start, end=end, confidence=min(confidence, 1.0)))
    return Aligned(tokens=tokens, log_prob=log_prob)
