"""CTC prefix scores (Watanabe et al. 2017, algorithm 2), for all utterances, hypotheses and candidates at once.

The recursion over frames is written in closed form. With X the running sum of a token's log posteriors,
    r_t = logaddexp(r_{t-1}, enter_t) + x_t      is      r_t - X_t = logcumsumexp_t(enter_t - X_{t-1}),
so a step takes a few tensor operations, for any number of frames. The differences cancel large sums, so they are
computed in float64, where the error stays below 1e-10. The recursion runs only for the hypotheses that survived:
scoring a candidate needs one sum over frames and no recursion.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from tympan.decode.search import Encoded
from tympan.nn.beam_state import PER_UTTERANCE, STATIC, BeamState

NEVER = float("-inf")
LOWEST_LOG_PROB = -1e4  # running sums must be exact enough to be subtracted


@dataclass(frozen=True)
class CtcPrefixState(BeamState):
    """Forward variables of each hypothesis: log probability that it is complete before frame t."""

    before_any: Tensor  # (U, B, T), with any last frame
    before_blank: Tensor  # (U, B, T), with blank as the last frame
    ends: Tensor  # (U, B), log probability that the utterance is this hypothesis and nothing more
    prefix: Tensor  # (U, B), log probability that the utterance begins with it
    last: Tensor  # (U, B), its last token, -1 if it is empty
    blank_sums: Tensor = field(metadata=PER_UTTERANCE)  # (U, T), running sums of the blank's log posteriors
    utterance: Tensor = field(metadata=PER_UTTERANCE)  # (U,), its row in log_probs
    lengths: Tensor = field(metadata=PER_UTTERANCE)  # (U,)
    by_token: Tensor = field(metadata=STATIC)
    """(utterances at the start, V, T) log posteriors: too large to be copied whenever an utterance finishes."""
    is_started: bool = field(metadata=STATIC)


class CtcPrefixScorer:
    """A partial scorer: log P(utterance begins with h + c) - log P(utterance begins with h); for eos, P(it is h)."""

    def __init__(self, *, blank_id: int, eos: int) -> None:
        self.blank_id = blank_id
        self.eos = eos

    def start(self, encoded: Encoded, beams: int) -> CtcPrefixState:
        if encoded.log_probs is None:
            raise ValueError("the CTC prefix score needs CTC log posteriors")
        lengths = encoded.lengths
        by_token = encoded.log_probs.transpose(1, 2).contiguous()
        utterance = torch.arange(encoded.utterances, device=by_token.device)
        padding = _is_padding(lengths, by_token.size(2))
        blank_sums = _readable_(by_token[:, self.blank_id].clone(), padding).double().cumsum(1)
        before = _shift(blank_sums, first=0.0).masked_fill(padding, NEVER)
        before = before.unsqueeze(1).expand(-1, beams, -1)
        ends = blank_sums.gather(1, lengths.unsqueeze(1) - 1).expand(-1, beams)
        return CtcPrefixState(
            before_any=before,
            before_blank=before,
            ends=ends,
            prefix=torch.zeros_like(ends),
            last=torch.full_like(ends, -1, dtype=torch.long),
            blank_sums=blank_sums,
            utterance=utterance,
            lengths=lengths,
            by_token=by_token,
            is_started=False,
        )

    def step(
        self, tokens: Tensor, state: CtcPrefixState, *, candidates: Tensor | None
    ) -> tuple[Tensor, CtcPrefixState]:
        state = self._extend(tokens, state) if state.is_started else replace(state, is_started=True)
        if candidates is None:
            scores, ids = self._score_all(state), torch.arange(state.by_token.size(1), device=tokens.device)
        else:
            scores, ids = self._score(candidates, state), candidates
        scores = torch.where(ids == self.eos, state.ends.unsqueeze(2), scores)
        scores = scores - state.prefix.masked_fill(state.prefix == NEVER, 0.0).unsqueeze(2)
        return scores.masked_fill(ids == self.blank_id, NEVER), state

    def _score(self, candidates: Tensor, state: CtcPrefixState) -> Tensor:
        frames = _frames_of(candidates, state)  # (U, B, C, T)
        peak = _peak(state.before_any)
        # Relative to the best frame, float32 is precise enough for float32 posteriors.
        before = (state.before_any - peak).to(frames.dtype)
        scores = _log_sum_(frames.add_(before.unsqueeze(2))) + peak
        return torch.where(candidates == state.last.unsqueeze(2), self._again(state), scores)

    def _score_all(self, state: CtcPrefixState) -> Tensor:
        """The sum over frames as one matrix product. In float64, terms up to 700 nats below the best frame count."""
        padding = _is_padding(state.lengths, state.by_token.size(2))
        peak = _peak(state.before_any)
        weights = (state.before_any - peak).exp()
        # One utterance after another, because the posteriors in float64 are the largest tensor of the search.
        sums = [
            weights[index] @ _readable_(state.by_token[row].to(torch.float64, copy=True), padding[index]).exp_().t()
            for index, row in enumerate(state.utterance.tolist())
        ]
        scores = torch.stack(sums).log() + peak
        tokens = torch.arange(scores.size(2), device=scores.device)
        return torch.where(tokens == state.last.unsqueeze(2), self._again(state), scores)

    def _again(self, state: CtcPrefixState) -> Tensor:
        """(U, B, 1) score of repeating each hypothesis' last token, which needs a blank in between."""
        frames = _frames_of(state.last.clamp(min=0), state)
        return _log_sum_(state.before_blank + frames).unsqueeze(2)

    def _extend(self, tokens: Tensor, state: CtcPrefixState) -> CtcPrefixState:
        frames = _frames_of(tokens, state).double()
        sums = frames.cumsum(2)
        enter = torch.where((tokens == state.last).unsqueeze(2), state.before_blank, state.before_any)
        token_ends = sums + (enter - _shift(sums, first=0.0)).logcumsumexp(2)

        blank_sums = state.blank_sums.unsqueeze(1)
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
            prefix=_log_sum_(enter + frames),
            last=tokens,
        )


def _frames_of(tokens: Tensor, state: CtcPrefixState) -> Tensor:
    """Log posteriors (U, ..., T) of tokens (U, ...), each in its own utterance. A new tensor."""
    vocab_size, frames = state.by_token.shape[1:]
    rows = (state.utterance * vocab_size).unsqueeze(1) + tokens.flatten(1)
    chosen = state.by_token.view(-1, frames).index_select(0, rows.flatten()).view(*rows.shape, frames)
    padding = _is_padding(state.lengths, frames).unsqueeze(1)
    return _readable_(chosen, padding).view(*tokens.shape, frames)


def _readable_(log_probs: Tensor, padding: Tensor) -> Tensor:
    """In place."""
    return log_probs.clamp_(min=LOWEST_LOG_PROB).masked_fill_(padding, 0.0)


def _log_sum_(values: Tensor) -> Tensor:
    """logsumexp over the last axis that avoids denormal numbers, for which exp is up to 100 times slower on CPU.
    Overwrites `values`.
    """
    peak = values.amax(-1, keepdim=True)
    relative = values.sub_(peak.masked_fill(peak == NEVER, 0.0))
    smallest = math.log(torch.finfo(values.dtype).tiny) + 2.0
    return relative.clamp_(min=smallest).exp_().sum(-1).log_() + peak.squeeze(-1)


def _peak(values: Tensor) -> Tensor:
    """Largest value along the last axis, 0 where there is none."""
    peak = values.amax(-1, keepdim=True)
    return peak.masked_fill(peak == NEVER, 0.0)


def _shift(values: Tensor, *, first: float) -> Tensor:
    """Shift values by one along the last axis: value t moves to t + 1."""
    return torch.nn.functional.pad(values[..., :-1], (1, 0), value=first)


def _is_padding(lengths: Tensor, frames: int) -> Tensor:
    return torch.arange(frames, device=lengths.device) >= lengths.unsqueeze(1)
