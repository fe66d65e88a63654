"""CTC prefix scores (Watanabe et al. 2017, algorithm 2), for all utterances, hypotheses and candidates at once.

The recursion over frames is written in closed form. With X the running sum of a token's log posteriors,
    r_t = logaddexp(r_{t-1}, enter_t) + x_t      is      r_t - X_t = logcumsumexp_t(enter_t - X_{t-1}),
so a step is a handful of tensor operations whatever the number of frames. The differences cancel large sums: they are
taken in float64, where the error stays below 1e-10. It runs for the hypotheses that survived alone: scoring
a candidate needs no recursion, only one sum over frames.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from tympan.decode.scorer import Encoded
from tympan.nn.beam_state import PER_UTTERANCE, STATIC, BeamState

NEVER = float("-inf")
LOWEST_LOG_PROB = -1e4  # keeps running sums exact enough to be subtracted again


@dataclass(frozen=True)
class CtcPrefixState(BeamState):
    """Where each hypothesis stands before frame t: log probability that it has been emitted whole by then."""

    before_any: Tensor  # (U, B, T), its last frame being anything
    before_blank: Tensor  # (U, B, T), its last frame being blank
    ends: Tensor  # (U, B), log probability that the utterance is this hypothesis and nothing more
    prefix: Tensor  # (U, B), log probability that the utterance begins with it
    last: Tensor  # (U, B), its last token, -1 if it is empty
    utterance: Tensor = field(metadata=PER_UTTERANCE)  # (U,), its row in log_probs
    lengths: Tensor = field(metadata=PER_UTTERANCE)  # (U,)
    log_probs: Tensor = field(metadata=STATIC)  # (utterances at the start, V, T): each token's frames lie together
    is_started: bool = field(metadata=STATIC)


class CtcPrefixScorer:
    """A partial scorer: log P(utterance begins with h + c) - log P(utterance begins with h); for eos, P(it is h)."""

    def __init__(self, *, blank_id: int, eos: int) -> None:
        self.blank_id = blank_id
        self.eos = eos

    def start(self, encoded: Encoded, beams: int) -> CtcPrefixState:
        if encoded.log_probs is None:
            raise ValueError("the CTC prefix score needs CTC log posteriors")
        padding = _is_padding(encoded.lengths, encoded.log_probs.size(1))
        log_probs = encoded.log_probs.transpose(1, 2).clamp(min=LOWEST_LOG_PROB)
        log_probs = log_probs.masked_fill(padding.unsqueeze(1), 0.0).contiguous()
        blank_sums = log_probs[:, self.blank_id].double().cumsum(1)
        before = _shift(blank_sums, first=0.0).masked_fill(padding, NEVER)
        before = before.unsqueeze(1).expand(-1, beams, -1)
        ends = blank_sums.gather(1, encoded.lengths.unsqueeze(1) - 1).expand(-1, beams)
        return CtcPrefixState(
            before_any=before,
            before_blank=before,
            ends=ends,
            prefix=torch.zeros_like(ends),
            last=torch.full_like(ends, -1, dtype=torch.long),
            utterance=torch.arange(encoded.utterances, device=log_probs.device),
            lengths=encoded.lengths,
            log_probs=log_probs,
            is_started=False,
        )

    def step(
        self, tokens: Tensor, state: CtcPrefixState, *, candidates: Tensor | None
    ) -> tuple[Tensor, CtcPrefixState]:
        state = self._extend(tokens, state) if state.is_started else replace(state, is_started=True)
        if candidates is None:
            scores, ids = self._score_all(state), torch.arange(state.log_probs.size(1), device=tokens.device)
        else:
            scores, ids = self._score(candidates, state), candidates
        scores = torch.where(ids == self.eos, state.ends.unsqueeze(2), scores)
        scores = scores - state.prefix.masked_fill(state.prefix == NEVER, 0.0).unsqueeze(2)
        return scores.masked_fill(ids == self.blank_id, NEVER), state

    def _score(self, candidates: Tensor, state: CtcPrefixState) -> Tensor:
        enter = state.before_any.unsqueeze(2) + _frames_of(candidates, state)
        scores = enter.logsumexp(3)
        again = self._again(state)
        return torch.where(candidates == state.last.unsqueeze(2), again.unsqueeze(2), scores)

    def _score_all(self, state: CtcPrefixState) -> Tensor:
        """The sum over frames as one matrix product; float64 holds what lies up to 700 nats below the best frame."""
        probs = state.log_probs[state.utterance].double().exp()
        peak = state.before_any.amax(2, keepdim=True)
        peak = peak.masked_fill(peak == NEVER, 0.0)
        scores = ((state.before_any - peak).exp() @ probs.transpose(1, 2)).log() + peak
        tokens = torch.arange(scores.size(2), device=scores.device)
        return torch.where(tokens == state.last.unsqueeze(2), self._again(state).unsqueeze(2), scores)

    def _again(self, state: CtcPrefixState) -> Tensor:
        """(U, B) score of each hypothesis' last token once more: a blank has to come between."""
        return (state.before_blank + _frames_of(state.last.clamp(min=0), state)).logsumexp(2)

    def _extend(self, tokens: Tensor, state: CtcPrefixState) -> CtcPrefixState:
        frames = _frames_of(tokens, state)
        sums = frames.cumsum(2)
        enter = torch.where((tokens == state.last).unsqueeze(2), state.before_blank, state.before_any)
        token_ends = sums + (enter - _shift(sums, first=0.0)).logcumsumexp(2)

        blank_sums = state.log_probs[state.utterance, self.blank_id].double().cumsum(1).unsqueeze(1)
        leave = _shift(token_ends, first=NEVER) - _shift(blank_sums, first=0.0)
        blank_ends = blank_sums + leave.logcumsumexp(2)

        ends = torch.logaddexp(token_ends, blank_ends)
        last_frame = (state.lengths - 1).view(-1, 1, 1).expand(-1, ends.size(1), 1)
        padding = _is_padding(state.lengths, ends.size(2)).unsqueeze(1)
        return replace(
            state,
            before_any=_shift(ends, first=NEVER).masked_fill(padding, NEVER),
            before_blank=_shift(blank_ends, first=NEVER).masked_fill(padding, NEVER),
            ends=ends.gather(2, last_frame).squeeze(2),
            prefix=(enter + frames).logsumexp(2),
            last=tokens,
        )


def _frames_of(tokens: Tensor, state: CtcPrefixState) -> Tensor:
    """Log posteriors (U, ..., T) of tokens (U, ...), each in its own utterance."""
    _, vocabulary, frames = state.log_probs.shape
    first_rows = (state.utterance * vocabulary).view(-1, *[1] * (tokens.dim() - 1))
    rows = state.log_probs.view(-1, frames).index_select(0, (tokens + first_rows).flatten())
    return rows.view(*tokens.shape, frames).double()


def _shift(values: Tensor, *, first: float) -> Tensor:
    """Value t moves to t + 1 along the last axis."""
    return torch.nn.functional.pad(values[..., :-1], (1, 0), value=first)


def _is_padding(lengths: Tensor, frames: int) -> Tensor:
    return torch.arange(frames, device=lengths.device) >= lengths.unsqueeze(1)
