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
        """Of tokens and blanks: (..., V) in at least float32."""
        return self.outputs(frames, predictions)[0]

    def internal_lm(self, predictions: Tensor) -> Tensor:
        """log P(next token) (..., V) for an encoder output of zero; 0 for blanks, which are left out."""
        silence = predictions.new_zeros(self.joint.lin_enc.in_features)
        logits = at_least_float32(self.joint(self.joint.project_frames(silence), predictions))
        logits = logits[..., : self.joint.vocab_size].clone()
        logits[..., list(self.durations)] = float("-inf")
        return logits.log_softmax(-1).masked_fill(logits == float("-inf"), 0.0)

    def outputs(self, frames: Tensor, predictions: Tensor) -> tuple[Tensor, Tensor]:
        """Log probabilities of tokens and blanks (..., V), and of durations (..., D), 0 of them for plain ones."""
        logits = at_least_float32(self.joint(frames, predictions))
        size = self.joint.vocab_size
        return logits[..., :size].log_softmax(-1), logits[..., size:].log_softmax(-1)


@dataclass(frozen=True)
class GreedyState:
    """The state of each utterance before its next decision, and its tokens and score so far."""

    prediction: Tensor  # (U, size)
    memory: Tensor  # (U, ...) state of the prediction network
    skip: Tensor  # (U,) number of frames of the next piece that the last token or blank covers
    seen: Tensor  # (U,) frames accepted so far
    emitted: Tensor  # (U,) number of tokens emitted at the current frame
    score: Tensor  # (U,) log probability of the path
    emissions: Tensor  # (U, capacity, 3) of each token: its id, its frame, and the frame after it
    log_probs: Tensor  # (U, capacity) of each token
    count: Tensor  # (U,)

    @property
    def texts(self) -> list[tuple[int, ...]]:
        rows = zip(self.emissions[:, :, 0].tolist(), self.count.tolist(), strict=True)
        return [tuple(row[:count]) for row, count in rows]


def greedy_start(parts: TransducerParts, frames: Tensor) -> GreedyState:
    """The state before the first of the projected frames (U, T, size)."""
    prediction, memory = parts.start(frames)
    zeros = torch.zeros(len(frames), dtype=torch.long, device=frames.device)
    return GreedyState(
        prediction=prediction,
        memory=memory,
        skip=zeros,
        seen=zeros,
        emitted=zeros,
        score=zeros.to(torch.get_default_dtype()),
        emissions=zeros.new_zeros(len(frames), 0, 3),
        log_probs=zeros.new_zeros(len(frames), 0, dtype=torch.get_default_dtype()),
        count=zeros,
    )


def greedy_accept(
    parts: TransducerParts, state: GreedyState, frames: Tensor, lengths: Tensor, *, max_symbols: int
) -> GreedyState:
    """The state after these projected frames (U, T, size). At most `max_symbols` tokens are emitted at one frame."""
    look = _Look.of(parts, frames.device)
    place = state.skip
    while len(rows := (place < lengths).nonzero().squeeze(1)):
        now = place[rows]
        found = look(frames, lengths, state.prediction, rows, now)
        # A frame that emits a token stays the current frame until a blank, or until it has emitted `max_symbols`.
        emitted = torch.where(found.place == now, state.emitted[rows], 0) + found.is_token
        taken = torch.where(found.is_token & (emitted >= max_symbols), found.taken.clamp(min=1), found.taken)
        emitted = emitted.masked_fill((taken > 0) | ~found.is_token, 0)
        place = place.index_copy(0, rows, found.place + taken)
        state = replace(
            state,
            emitted=state.emitted.index_copy(0, rows, emitted),
            score=state.score.index_add(0, rows, found.score.to(state.score.dtype)),
        )
        state = _emit(parts, state, rows, found)
    return replace(state, skip=place - lengths, seen=state.seen + lengths)


@dataclass(frozen=True)
class _Found:
    """The result for the next block of each utterance: its first token if there is one, else its last blank."""

    is_token: Tensor
    token: Tensor
    place: Tensor
    """The frame of the token or blank."""
    taken: Tensor
    """Number of frames that it covers, at least 1 for a blank."""
    log_prob: Tensor
    """Of the token or blank."""
    score: Tensor
    """Of everything up to it."""


@dataclass(frozen=True)
class _Look:
    """Looks for the next token of each utterance."""

    parts: TransducerParts
    block: int
    """Frames to look at together: 1 if blanks may skip frames."""
    is_blank: Tensor  # (V,)
    taken: Tensor  # (V,) number of frames that a blank covers, 0 for tokens
    durations: Tensor  # (D,) of a token-and-duration transducer

    @classmethod
    def of(cls, parts: TransducerParts, device: torch.device) -> _Look:
        taken = torch.zeros(parts.joint.vocab_size, dtype=torch.long, device=device)
        for token, duration in parts.durations.items():
            taken[token] = duration
        durations = torch.tensor(parts.joint.durations, dtype=torch.long, device=device)
        is_plain = len(parts.durations) == 1 and not len(durations)
        return cls(parts, BLOCK if is_plain else 1, taken > 0, taken, durations)

    def __call__(self, frames: Tensor, lengths: Tensor, prediction: Tensor, rows: Tensor, now: Tensor) -> _Found:
        places = now.unsqueeze(1) + torch.arange(self.block, device=now.device)  # (rows, block)
        is_inside = places < lengths[rows].unsqueeze(1)
        heard = frames[rows.unsqueeze(1), places.clamp(max=frames.size(1) - 1)]
        log_probs, lasting = self.parts.outputs(heard, prediction[rows].unsqueeze(1))
        best = log_probs.max(2)
        emits = is_inside & ~self.is_blank[best.indices]
        is_token = emits.any(1)
        first = torch.where(is_token, emits.int().argmax(1), is_inside.sum(1) - 1).unsqueeze(1)
        is_scored = is_inside & (torch.arange(self.block, device=now.device) <= first)
        token = best.indices.gather(1, first).squeeze(1)
        score = best.values.masked_fill(~is_scored, 0.0).sum(1)
        taken = self.taken[token]
        if len(self.durations):
            longest = lasting[:, 0].max(1)
            score = score + longest.values
            taken = self.durations[longest.indices]
            taken = torch.where(is_token, taken, taken.clamp(min=1))
        return _Found(
            is_token=is_token,
            token=token,
            place=now + first.squeeze(1),
            taken=taken,
            log_prob=best.values.gather(1, first).squeeze(1),
            score=score,
        )


def _emit(parts: TransducerParts, state: GreedyState, rows: Tensor, found: _Found) -> GreedyState:
    """Append the found tokens and let the prediction networks of their utterances make a step."""
    rows = rows[found.is_token]
    if not len(rows):
        return state
    token, place = found.token[found.is_token], found.place[found.is_token] + state.seen[rows]
    emission = torch.stack([token, place, place + found.taken[found.is_token].clamp(min=1)], 1)
    prediction, memory = parts.advance(token, state.memory[rows])
    count = state.count.index_add(0, rows, torch.ones_like(rows))
    emissions, log_probs = state.emissions, state.log_probs
    if int(count.max()) > emissions.size(1):
        more = max(16, emissions.size(1))
        emissions = torch.nn.functional.pad(emissions, (0, 0, 0, more))
        log_probs = torch.nn.functional.pad(log_probs, (0, more))
    where = (rows, state.count[rows])
    return replace(
        state,
        prediction=state.prediction.index_copy(0, rows, prediction),
        memory=state.memory.index_copy(0, rows, memory),
        emissions=emissions.index_put(where, emission),
        log_probs=log_probs.index_put(where, found.log_prob[found.is_token].to(log_probs.dtype)),
        count=count,
    )
