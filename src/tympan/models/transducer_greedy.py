"""Greedy transducer search, all utterances at once.

Label looping: the prediction network changes only when a token is emitted. So each utterance searches a block of frames
for its next token, and then the prediction network makes one step for all utterances.

Shapes: U utterances, T frames, V vocabulary. Frames and predictions are projected into the joint space.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tympan.models.decoder.prediction import PredictionNetwork
from tympan.models.joint_network import JointNetwork
from tympan.nn.full_precision import at_least_float32

BLOCK = 8
"""Number of frames that are searched for the next token at a time."""


@dataclass(frozen=True)
class TransducerParts:
    """The parts of a transducer that a search uses."""

    prediction: PredictionNetwork
    joint: JointNetwork
    blank_id: int
    durations: Mapping[int, int]
    """Number of frames that each blank covers, by token id; 1 for the standard blank."""

    def start(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        """Projected predictions (U, size) after no token, and states (U, ...), for projected frames (U, T, size)."""
        like = frames[:, 0] if frames.size(1) else frames.sum(1)
        blanks = torch.full((len(frames),), self.blank_id, device=frames.device)
        return self.advance(blanks, self.prediction.start(like))

    def advance(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Projected predictions (..., size) and states after one more token each."""
        out, state = self.prediction.step(tokens, state)
        return self.joint.project_predictions(out), state

    def log_probs(self, frames: Tensor, predictions: Tensor) -> Tensor:
        """(..., V) in at least float32."""
        return at_least_float32(self.joint(frames, predictions)).log_softmax(-1)


@dataclass(frozen=True)
class GreedyState:
    """The state of each utterance before its next decision, and its tokens and score so far."""

    prediction: Tensor  # (U, size)
    memory: Tensor  # (U, ...) state of the prediction network
    skip: Tensor  # (U,) number of frames of the next piece that the last blank covers
    emitted: Tensor  # (U,) number of tokens emitted at the current frame
    score: Tensor  # (U,) log probability of the path
    tokens: Tensor  # (U, capacity)
    count: Tensor  # (U,)

    @property
    def texts(self) -> list[tuple[int, ...]]:
        rows = zip(self.tokens.tolist(), self.count.tolist(), strict=True)
        return [tuple(row[:count]) for row, count in rows]


def greedy_start(parts: TransducerParts, frames: Tensor) -> GreedyState:
    """The state before the first of the projected frames (U, T, size)."""
    prediction, memory = parts.start(frames)
    zeros = torch.zeros(len(frames), dtype=torch.long, device=frames.device)
    return GreedyState(
        prediction=prediction,
        memory=memory,
        skip=zeros,
        emitted=zeros,
        score=zeros.to(torch.get_default_dtype()),
        tokens=zeros.new_zeros(len(frames), 0),
        count=zeros,
    )


def greedy_accept(
    parts: TransducerParts, state: GreedyState, frames: Tensor, lengths: Tensor, *, max_symbols: int
) -> GreedyState:
    """The state after these projected frames (U, T, size). At most `max_symbols` tokens are emitted at one frame."""
    block = BLOCK if len(parts.durations) == 1 else 1
    durations = torch.ones(parts.joint.vocab_size, dtype=torch.long, device=frames.device)
    for token, duration in parts.durations.items():
        durations[token] = duration
    is_blank = torch.zeros_like(durations, dtype=torch.bool)
    is_blank[list(parts.durations)] = True
    place = state.skip
    while len(rows := (place < lengths).nonzero().squeeze(1)):
        now = place[rows]
        found = _next_tokens(parts, frames, lengths, state.prediction, rows, now, block, is_blank)
        # A frame that emits a token stays the current frame until a blank, or until it has emitted `max_symbols`.
        emitted = torch.where(found.place == now, state.emitted[rows], 0) + found.is_token
        is_full = emitted >= max_symbols
        passed = torch.where(found.is_token, found.place + is_full, now + _passed(found, durations, now, lengths[rows]))
        emitted = emitted.masked_fill(is_full | ~found.is_token, 0)
        place = place.index_copy(0, rows, passed)
        state = replace(
            state,
            emitted=state.emitted.index_copy(0, rows, emitted),
            score=state.score.index_add(0, rows, found.score.to(state.score.dtype)),
        )
        state = _emit(parts, state, rows[found.is_token], found.token[found.is_token])
    return replace(state, skip=place - lengths)


@dataclass(frozen=True)
class _Found:
    """The result for the next block of each utterance: its first token if there is one, else its last blank."""

    is_token: Tensor
    token: Tensor
    place: Tensor
    """The frame of the token, or the frame after the block."""
    score: Tensor


def _next_tokens(
    parts: TransducerParts,
    frames: Tensor,
    lengths: Tensor,
    prediction: Tensor,
    rows: Tensor,
    now: Tensor,
    block: int,
    is_blank: Tensor,
) -> _Found:
    places = now.unsqueeze(1) + torch.arange(block, device=now.device)  # (rows, block)
    is_inside = places < lengths[rows].unsqueeze(1)
    heard = frames[rows.unsqueeze(1), places.clamp(max=frames.size(1) - 1)]
    best = parts.log_probs(heard, prediction[rows].unsqueeze(1)).max(2)
    emits = is_inside & ~is_blank[best.indices]
    is_token = emits.any(1)
    first = torch.where(is_token, emits.int().argmax(1), is_inside.sum(1) - 1).unsqueeze(1)
    is_scored = is_inside & (torch.arange(block, device=now.device) <= first)
    return _Found(
        is_token=is_token,
        token=best.indices.gather(1, first).squeeze(1),
        place=torch.where(is_token, places.gather(1, first).squeeze(1), now + is_inside.sum(1)),
        score=best.values.masked_fill(~is_scored, 0.0).sum(1),
    )


def _passed(found: _Found, durations: Tensor, now: Tensor, lengths: Tensor) -> Tensor:
    """Number of frames that the blanks of a block without a token cover: one each, except that the last may be big."""
    return found.place - now - 1 + durations[found.token]


def _emit(parts: TransducerParts, state: GreedyState, rows: Tensor, tokens: Tensor) -> GreedyState:
    if not len(rows):
        return state
    prediction, memory = parts.advance(tokens, state.memory[rows])
    count = state.count.index_add(0, rows, torch.ones_like(rows))
    kept = state.tokens
    if int(count.max()) > kept.size(1):
        kept = torch.nn.functional.pad(kept, (0, max(16, kept.size(1))))
    return replace(
        state,
        prediction=state.prediction.index_copy(0, rows, prediction),
        memory=state.memory.index_copy(0, rows, memory),
        tokens=kept.index_put((rows, state.count[rows]), tokens),
        count=count,
    )
