"""Label-synchronous beam search over many utterances at once: score, prune, extend, end, rank.

The result for an utterance does not depend on the other utterances of the batch: hypotheses are only compared within
an utterance. An utterance that has finished leaves the batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import torch
from torch import Tensor

from tympan.decode.scorer import FullScorer, PartialScorer
from tympan.decode.search import Encoded, Ended
from tympan.nn.beam_state import PER_UTTERANCE, BeamState

DEAD = float("-inf")
END_LENGTHS = 3
END_SCORE_DROP = 10.0
FIRST_LENGTH = 64
"""Tokens that fit into the hypotheses of a search with fixed shapes. It doubles when one is longer."""

S = TypeVar("S", covariant=True)


@dataclass(frozen=True)
class Weighted(Generic[S]):
    """A scorer and its weight in the sum."""

    scorer: S
    weight: float


Full = Mapping[str, Weighted[FullScorer]]
Partial = Mapping[str, Weighted[PartialScorer]]
States = dict[str, BeamState]
"""Score of each scorer, by its name."""


@dataclass(frozen=True)
class LengthLimits:
    """Maximum and minimum length of a hypothesis, as in ESPnet2.

    `maxlenratio` 0: as many steps as frames, with end detection; positive: this fraction of the frames; negative:
    this number of steps. `minlenratio` is read in the same way; a hypothesis that ends earlier is dropped.
    """

    maxlenratio: float = 0.0
    minlenratio: float = 0.0
    most: int | None = None
    """Number of steps that a decoder with a limited number of positions can make."""

    @property
    def has_end_detection(self) -> bool:
        return self.maxlenratio == 0

    def max_steps(self, frames: int) -> int:
        steps = self._steps(frames)
        return steps if self.most is None else min(steps, self.most)

    def _steps(self, frames: int) -> int:
        if self.maxlenratio == 0:
            return frames
        if self.maxlenratio < 0:
            return max(1, -int(self.maxlenratio))
        return max(1, int(self.maxlenratio * frames))

    def min_steps(self, frames: int) -> int:
        return -int(self.minlenratio) if self.minlenratio < 0 else int(self.minlenratio * frames)

    def relaxed(self) -> LengthLimits:
        """The limits with `minlenratio` lowered by 0.1, for utterances without a hypothesis that is long enough."""
        return replace(self, minlenratio=max(0.0, self.minlenratio - 0.1))


@dataclass(frozen=True)
class Beams(BeamState):
    """The running hypotheses. A score of -inf marks an unused slot."""

    tokens: Tensor  # (U, B, length or more), sos first
    last: Tensor  # (U, B), the newest token
    score: Tensor  # (U, B)
    scores: Tensor  # (U, B, scorers), before weighting
    row: Tensor = field(metadata=PER_UTTERANCE)  # (U,), index of the utterance in the original batch


@dataclass(frozen=True)
class Extended:
    """The survivors of a step, before finished hypotheses are removed."""

    parents: Tensor  # (U, B)
    tokens: Tensor  # (U, B)
    score: Tensor  # (U, B)
    scores: Tensor  # (U, B, scorers)


class BeamSearch:
    """Joint search with any number of scorers. The caller leaves out scorers with weight 0.

    `offers_end`: always score eos, even if it is not among the candidates that were selected before partial scorers
    such as CTC were asked.
    `has_fixed_shapes`: for devices that compile every shape. All beams exist from the first step, and finished
    utterances stay in the batch without hypotheses. The result is the same.
    """

    def __init__(
        self,
        full: Full,
        partial: Partial,
        *,
        beam_size: int,
        sos: int,
        eos: int,
        vocab_size: int,
        pre_beam_ratio: float = 1.5,
        has_pre_beam: bool = True,
        offers_end: bool = True,
        is_length_normalized: bool = False,
        has_fixed_shapes: bool = False,
    ) -> None:
        self.full = dict(full)
        self.partial = dict(partial)
        self.beam_size = beam_size
        self.sos = sos
        self.eos = eos
        self.vocab_size = vocab_size
        self.pre_beam_size = int(pre_beam_ratio * beam_size)
        self.has_pre_beam = has_pre_beam and bool(full) and bool(partial) and self.pre_beam_size < vocab_size
        self.offers_end = offers_end
        self.is_length_normalized = is_length_normalized
        self.has_fixed_shapes = has_fixed_shapes

    @torch.inference_mode()
    def __call__(self, encoded: Encoded, limits: LengthLimits) -> list[list[Ended]]:
        """All finished hypotheses of each utterance, best first. If an utterance has none, it is searched again with a
        shorter minimum length, then with eos always scored.
        """
        return self._search_until_found(encoded, limits, offers_end=self.offers_end)

    def _search_until_found(self, encoded: Encoded, limits: LengthLimits, *, offers_end: bool) -> list[list[Ended]]:
        every = self._search(encoded, limits, offers_end=offers_end)
        found = [rank(ended, is_length_normalized=self.is_length_normalized) for ended in every]
        missing = [row for row, hypotheses in enumerate(found) if not hypotheses]
        if missing and (limits.minlenratio != 0 or not offers_end):
            others = encoded.select(torch.tensor(missing, device=encoded.lengths.device))
            is_relaxing = limits.minlenratio != 0
            again = self._search_until_found(
                others, limits.relaxed() if is_relaxing else limits, offers_end=offers_end or not is_relaxing
            )
            for row, hypotheses in zip(missing, again, strict=True):
                found[row] = hypotheses
        return found

    def _search(self, encoded: Encoded, limits: LengthLimits, *, offers_end: bool) -> list[list[Ended]]:
        frames = encoded.lengths.tolist()
        ended: list[list[Ended]] = [[] for _ in frames]
        beams = self._first_beams(encoded)
        states = self._first_states(encoded)
        for step in range(max(map(limits.max_steps, frames))):
            extended, states = self._step(beams, states, offers_end=offers_end)
            states = {name: state.reorder(extended.parents) for name, state in states.items()}
            beams = self._collect(beams, extended, step=step, frames=frames, limits=limits, ended=ended)
            going = self._going(beams, step=step, frames=frames, limits=limits, ended=ended)
            if not going:
                break
            if self.has_fixed_shapes:
                beams = _without_finished(beams, going)
            elif len(going) < len(beams.row):
                kept = torch.tensor(going, device=beams.row.device)
                beams = beams.keep(kept)
                states = {name: state.keep(kept) for name, state in states.items()}
        return ended

    def _first_states(self, encoded: Encoded) -> States:
        beams = self.beam_size if self.has_fixed_shapes else 1
        states: States = {name: item.scorer.start(encoded, beams) for name, item in self.full.items()}
        states |= {name: item.scorer.start(encoded, beams) for name, item in self.partial.items()}
        if self.has_fixed_shapes:
            states = {name: state.with_fixed_shapes() for name, state in states.items()}
        return states

    def _first_beams(self, encoded: Encoded) -> Beams:
        beams = self.beam_size if self.has_fixed_shapes else 1
        score = torch.zeros(encoded.utterances, beams, dtype=torch.float64, device=encoded.lengths.device)
        score[:, 1:] = DEAD
        last = torch.full_like(score, self.sos, dtype=torch.long)
        tokens = last.unsqueeze(2)
        if self.has_fixed_shapes:
            tokens = torch.nn.functional.pad(tokens, (0, FIRST_LENGTH - 1))
        return Beams(
            tokens=tokens,
            last=last,
            score=score,
            scores=torch.zeros_like(score).unsqueeze(2).expand(-1, -1, len(self.full) + len(self.partial)),
            row=torch.arange(encoded.utterances, device=score.device),
        )

    def _step(self, beams: Beams, states: States, *, offers_end: bool) -> tuple[Extended, States]:
        last = beams.last
        new_states: States = {}
        whole: list[Tensor] = []
        for name, item in self.full.items():
            scores, new_states[name] = item.scorer.step(last, states[name])
            whole.append(scores)
        candidates = self._prune(whole, beams, offers_end=offers_end)
        local = [scores.gather(2, candidates.tokens) for scores in whole]
        asked = None if candidates.is_vocabulary else candidates.tokens
        for name, some in self.partial.items():
            scores, new_states[name] = some.scorer.step(last, states[name], candidates=asked)
            local.append(scores)
        return self._extend(beams, candidates, local), new_states

    def _prune(self, whole: Sequence[Tensor], beams: Beams, *, offers_end: bool) -> Candidates:
        if not whole:
            return all_tokens(beams.score.unsqueeze(2).expand(-1, -1, self.vocab_size))
        weighted = _weighted_sum(whole, [item.weight for item in self.full.values()])
        if not self.partial:
            return best_tokens(weighted, self.beam_size)
        if not self.has_pre_beam:
            return all_tokens(weighted)
        if not offers_end:
            return best_tokens(weighted, self.pre_beam_size)
        return best_tokens_and_eos(weighted, self.pre_beam_size, eos=self.eos)

    def _extend(self, beams: Beams, candidates: Candidates, local: Sequence[Tensor]) -> Extended:
        weights = [item.weight for item in self.full.values()] + [item.weight for item in self.partial.values()]
        local = [scores.double() for scores in local]
        total = beams.score.unsqueeze(2) + _weighted_sum(local, weights)
        if candidates.is_extra is not None:
            total = total.masked_fill(candidates.is_extra, DEAD)
        choices = total.size(2)
        score, flat = total.flatten(1).topk(min(self.beam_size, total.size(1) * choices), dim=1)
        parents = flat // choices
        chosen = torch.stack([scores.flatten(1).gather(1, flat) for scores in local], dim=2)
        before = beams.scores.gather(1, parents.unsqueeze(2).expand_as(chosen))
        return Extended(
            parents=parents,
            tokens=candidates.tokens.flatten(1).gather(1, flat),
            score=score,
            scores=before + chosen,
        )

    def _collect(
        self,
        beams: Beams,
        extended: Extended,
        *,
        step: int,
        frames: Sequence[int],
        limits: LengthLimits,
        ended: list[list[Ended]],
    ) -> Beams:
        """Move hypotheses that ended (by eos or at the length limit) to `ended`. The others are the new beams."""
        history = beams.tokens.gather(1, extended.parents.unsqueeze(2).expand(-1, -1, beams.tokens.size(2)))
        rows = beams.row.tolist()
        at_limit = torch.tensor([step + 1 >= limits.max_steps(frames[row]) for row in rows], device=history.device)
        is_alive = extended.score > DEAD
        ends = is_alive & ((extended.tokens == self.eos) | at_limit.unsqueeze(1))
        names = [*self.full, *self.partial]
        for index, beam in ends.nonzero().tolist():
            row = rows[index]
            if step < limits.min_steps(frames[row]):
                continue
            token = int(extended.tokens[index, beam])
            is_eos = token == self.eos
            last = [] if is_eos else [token]
            scores = extended.scores[index, beam].tolist()
            ended[row].append(
                Ended(
                    token_ids=(*history[index, beam, 1 : step + 1].tolist(), *last),
                    score=float(extended.score[index, beam]),
                    scores=dict(zip(names, scores, strict=True)),
                    is_ended_twice=is_eos and bool(at_limit[index]),
                )
            )
        return Beams(
            tokens=self._appended(history, extended.tokens, length=step + 1),
            last=extended.tokens,
            score=extended.score.masked_fill(ends, DEAD),
            scores=extended.scores,
            row=beams.row,
        )

    def _appended(self, history: Tensor, tokens: Tensor, *, length: int) -> Tensor:
        """The tokens behind the `length` ones of the history."""
        if not self.has_fixed_shapes:
            return torch.cat([history, tokens.unsqueeze(2)], dim=2)
        if length == history.size(2):
            history = torch.nn.functional.pad(history, (0, length))
        history[:, :, length] = tokens
        return history

    def _going(
        self, beams: Beams, *, step: int, frames: Sequence[int], limits: LengthLimits, ended: Sequence[Sequence[Ended]]
    ) -> list[int]:
        """Indices of the utterances that continue."""
        is_alive = (beams.score > DEAD).any(1).tolist()
        going = []
        for index, row in enumerate(beams.row.tolist()):
            is_finished = limits.has_end_detection and is_end_detected(ended[row], step)
            if is_alive[index] and not is_finished:
                going.append(index)
        return going


@dataclass(frozen=True)
class Candidates:
    """The candidate next tokens of each hypothesis, to be scored by every scorer.

    `is_extra` marks slots that duplicate another one and must not be chosen. `is_vocabulary`: the candidates are the
    whole vocabulary, in order.
    """

    tokens: Tensor  # (U, B, C)
    is_extra: Tensor | None = None  # (U, B, C)
    is_vocabulary: bool = False


def best_tokens(scores: Tensor, count: int) -> Candidates:
    """The `count` best of scores (U, B, V)."""
    return Candidates(tokens=scores.topk(min(count, scores.size(2)), dim=2).indices)


def best_tokens_and_eos(scores: Tensor, count: int, *, eos: int) -> Candidates:
    """The `count` best, and eos even if it is not among them, because CTC may give it a high score."""
    tokens = scores.topk(count, dim=2).indices
    has_eos = (tokens == eos).any(2, keepdim=True)
    tokens = torch.nn.functional.pad(tokens, (0, 1), value=eos)
    is_extra = torch.nn.functional.pad(torch.zeros_like(tokens[..., :-1], dtype=torch.bool), (0, 1), value=True)
    return Candidates(tokens=tokens, is_extra=is_extra & has_eos)


def all_tokens(scores: Tensor) -> Candidates:
    """The whole vocabulary."""
    return Candidates(tokens=torch.arange(scores.size(2), device=scores.device).expand_as(scores), is_vocabulary=True)


def is_end_detected(ended: Sequence[Ended], step: int) -> bool:
    """Whether no hypothesis of the last three lengths is close to the best one (Watanabe et al. 2017, equation 50)."""
    if not ended:
        return False
    best = max(hypothesis.score for hypothesis in ended)
    for length in range(step, step - END_LENGTHS, -1):
        scores = [hypothesis.score for hypothesis in ended if hypothesis.length == length]
        if not scores or max(scores) - best >= -END_SCORE_DROP:
            return False
    return True


def rank(ended: Sequence[Ended], *, is_length_normalized: bool) -> list[Ended]:
    """Best first, optionally by score per token (eos counts as one)."""
    if is_length_normalized:
        return sorted(ended, key=lambda hypothesis: -hypothesis.score / (hypothesis.length - 1))
    return sorted(ended, key=lambda hypothesis: -hypothesis.score)


def _without_finished(beams: Beams, going: Sequence[int]) -> Beams:
    is_finished = torch.tensor([index not in going for index in range(len(beams.row))], device=beams.row.device)
    return replace(beams, score=beams.score.masked_fill(is_finished.unsqueeze(1), DEAD))


def _weighted_sum(scores: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    total = scores[0] * weights[0]
    for part, weight in zip(scores[1:], weights[1:], strict=True):
        total = torch.add(total, part, alpha=weight)
    return total
