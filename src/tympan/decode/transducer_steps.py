"""Beam searches of transducers that go frame by frame: what each of them does with one frame.

They are ESPnet2's `default`, `tsd`, `nsc` and `maes`, for all utterances at once. ESPnet2 chooses the candidates of a
hypothesis without the language model, and prefix search leaves it out; so do these.

Shapes: U utterances, N hypotheses, C candidates of each, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tympan.decode.transducer_beams import NEVER, Beams, Grower, best_rows, joined, merged, text_keys

MAX_EXPANSIONS = 500
"""Expansions of the best-first search per frame and utterance. A model that never says blank would go on forever."""


class FrameStep(Protocol):
    """One frame of a search."""

    @property
    def grower(self) -> Grower: ...

    def __call__(self, beams: Beams, frames: Tensor, now: Tensor) -> Beams:
        """From the hypotheses before a frame to those after it. Projected frames (U, size), their numbers (U,)."""
        ...


@dataclass(frozen=True)
class Candidates:
    """Possible next tokens: of each row its parent, token, log probability and score with fusion."""

    parent: Tensor  # (M,)
    token: Tensor
    log_prob: Tensor
    score: Tensor

    def select(self, rows: Tensor) -> Candidates:
        return Candidates(self.parent[rows], self.token[rows], self.log_prob[rows], self.score[rows])

    def keys(self, parents: Beams) -> Tensor:
        """(M,) numbers that stand for utterance and text."""
        return text_keys(parents.utterance[self.parent], parents.grown_hash(self.parent, self.token))


def candidates(grower: Grower, beams: Beams, log_probs: Tensor, *, count: int) -> Candidates:
    """The `count` most likely tokens of each hypothesis, from log probabilities (N, V)."""
    others = log_probs.clone()
    others[:, grower.parts.blank_id] = NEVER
    best = others.topk(min(count, log_probs.size(1) - 1), dim=1)
    score = beams.score.unsqueeze(1) + best.values.double()
    if grower.fusion.names:
        score = score + grower.bonus(beams).gather(1, best.indices)
    parent = torch.arange(len(beams), device=log_probs.device).unsqueeze(1).expand_as(best.indices)
    return Candidates(parent.flatten(), best.indices.flatten(), best.values.flatten(), score.flatten())


def grow_chosen(grower: Grower, beams: Beams, chosen: Candidates, now: Tensor) -> Beams:
    parents = beams.select(chosen.parent)
    return grower.grow(
        parents, chosen.token, scores=chosen.score, frames=now[parents.utterance], log_probs=chosen.log_prob
    )


def best(beams: Beams, beam: int, *, is_normalized: bool = False) -> Beams:
    return beams.select(best_rows(beams.utterance, beams.ranking(is_normalized=is_normalized), beam))


def after_blank(grower: Grower, beams: Beams, log_probs: Tensor) -> Beams:
    return beams.scored(beams.score + log_probs[:, grower.parts.blank_id].double())


@dataclass(frozen=True)
class TimeSync:
    """`tsd` (Saon et al. 2020): up to `max_sym_exp` - 1 tokens at a frame, all hypotheses together."""

    grower: Grower
    beam: int
    max_sym_exp: int
    is_normalized: bool
    """Whether scores are divided by length while searching."""

    def __call__(self, beams: Beams, frames: Tensor, now: Tensor) -> Beams:
        ended = []
        for expansion in range(self.max_sym_exp):
            log_probs = self.grower.parts.log_probs(frames[beams.utterance], beams.prediction)
            ended.append(after_blank(self.grower, beams, log_probs))
            if expansion == self.max_sym_exp - 1:
                break
            found = candidates(self.grower, beams, log_probs, count=self.beam)
            ranking = found.score / (beams.count[found.parent] + 2) if self.is_normalized else found.score
            chosen = found.select(best_rows(beams.utterance[found.parent], ranking, self.beam))
            beams = grow_chosen(self.grower, beams, chosen, now)
        return best(merged(joined(ended)), self.beam, is_normalized=self.is_normalized)


def with_prefixes(grower: Grower, beams: Beams, frames: Tensor) -> Beams:
    """Add to each hypothesis the ways from its prefixes in the beam, which are up to `past` tokens shorter."""
    if not grower.past:
        return beams
    back = torch.arange(1, grower.past + 1, device=frames.device)
    place = beams.count.unsqueeze(1) - back  # (N, P)
    tokens = beams.tokens.gather(1, place.clamp(min=0))
    heard = frames[beams.utterance].unsqueeze(1)
    log_probs = grower.parts.log_probs(heard, beams.past_prediction)  # (N, P, V)
    way = log_probs.gather(2, tokens.unsqueeze(2)).squeeze(2).double().cumsum(1)  # from the text `back` tokens before
    is_same = beams.utterance.unsqueeze(1) == beams.utterance  # (N, N)
    score = beams.score
    for less in range(grower.past):
        is_prefix = is_same & (beams.past_hash[:, less : less + 1] == beams.hash) & (place[:, less : less + 1] >= 0)
        ways = torch.where(is_prefix, beams.score + way[:, less : less + 1], NEVER)
        score = torch.logaddexp(score, ways.logsumexp(1))
    return beams.scored(score)


@dataclass(frozen=True)
class NStep:
    """`nsc` (Kim et al. 2020): `nstep` rounds of expansions at a frame, with prefix search."""

    grower: Grower
    beam: int
    nstep: int

    def __call__(self, beams: Beams, frames: Tensor, now: Tensor) -> Beams:
        beams = with_prefixes(self.grower, beams, frames)
        ended = []
        for _ in range(self.nstep):
            log_probs = self.grower.parts.log_probs(frames[beams.utterance], beams.prediction)
            ended.append(after_blank(self.grower, beams, log_probs))
            found = candidates(self.grower, beams, log_probs, count=self.beam)
            found = found.select(~torch.isin(found.keys(beams), text_keys(beams.utterance, beams.hash)))
            chosen = found.select(best_rows(beams.utterance[found.parent], found.score, self.beam))
            beams = grow_chosen(self.grower, beams, chosen, now)
        if self.nstep > 1:
            log_probs = self.grower.parts.log_probs(frames[beams.utterance], beams.prediction)
            beams = after_blank(self.grower, beams, log_probs)
        return best(joined([*ended, beams]), self.beam)


@dataclass(frozen=True)
class AdaptiveExpansion:
    """`maes` (Kim et al. 2020): only candidates within `gamma` of the best one of their hypothesis."""

    grower: Grower
    beam: int
    nstep: int
    beta: int
    gamma: float

    def __call__(self, beams: Beams, frames: Tensor, now: Tensor) -> Beams:
        beams = first = with_prefixes(self.grower, beams, frames)
        known = text_keys(beams.utterance, beams.hash)
        ended, blank_id = [], self.grower.parts.blank_id
        for _ in range(self.nstep):
            if not len(beams):
                break
            log_probs = self.grower.parts.log_probs(frames[beams.utterance], beams.prediction)
            top = log_probs.topk(min(self.beam + self.beta, log_probs.size(1)), dim=1).values
            least = torch.maximum(top[:, -1:], top[:, :1] - self.gamma)
            says_blank = log_probs[:, blank_id] >= least.squeeze(1)
            ended.append(after_blank(self.grower, beams, log_probs).select(says_blank))
            found = candidates(self.grower, beams, log_probs, count=self.beam + self.beta)
            is_close = found.log_prob >= least.squeeze(1)[found.parent]
            found = found.select(is_close & ~torch.isin(found.keys(beams), known))
            beams = grow_chosen(self.grower, beams, found, now)
        if len(beams):
            log_probs = self.grower.parts.log_probs(frames[beams.utterance], beams.prediction)
            ended.append(after_blank(self.grower, beams, log_probs))
        kept = joined(ended)
        # Where no blank was close enough and every candidate was known already, the hypotheses stay
        is_lost = ~torch.isin(first.utterance, kept.utterance)
        if bool(is_lost.any()):
            log_probs = self.grower.parts.log_probs(frames[first.utterance], first.prediction)
            kept = joined([kept, after_blank(self.grower, first, log_probs).select(is_lost)])
        return best(kept, self.beam)


@dataclass(frozen=True)
class BestFirst:
    """`default` (Graves 2012): at each frame the best open hypothesis is expanded, until enough are better."""

    grower: Grower
    beam: int
    is_normalized: bool

    def __call__(self, beams: Beams, frames: Tensor, now: Tensor) -> Beams:
        # `nodes` are hypotheses whose prediction is known. `open_` refers to them: as they are, or with one more token
        nodes, utterances = beams, len(frames)
        whole = torch.full_like(beams.hash, -1)
        open_ = Candidates(torch.arange(len(beams), device=whole.device), whole, beams.score, beams.score)
        ended: Beams | None = None
        is_done = torch.zeros(utterances, dtype=torch.bool, device=frames.device)
        result: list[Beams] = []
        for expansion in range(MAX_EXPANSIONS):
            chosen = best_rows(nodes.utterance[open_.parent], self._ranking(nodes, open_), 1)
            expanded = self._expanded(nodes, open_.select(chosen), now)
            log_probs = self.grower.parts.log_probs(frames[expanded.utterance], expanded.prediction)
            blank = after_blank(self.grower, expanded, log_probs)
            ended = blank if ended is None else joined([ended, blank])
            found = candidates(self.grower, expanded, log_probs, count=self.beam)
            open_ = _joined(_without(open_, chosen), found, offset=len(nodes))
            nodes = joined([nodes, expanded])
            limit = self._best_open(nodes, open_, utterances)
            is_better = ended.score > limit[ended.utterance]
            enough = torch.bincount(ended.utterance[is_better], minlength=utterances) >= self.beam
            if expansion == MAX_EXPANSIONS - 1:
                enough, is_better = torch.ones_like(is_done), torch.ones_like(is_better)
            result.append(ended.select(is_better & enough[ended.utterance]))
            is_done = is_done | enough
            ended = ended.select(~is_done[ended.utterance])
            open_ = open_.select(~is_done[nodes.utterance[open_.parent]])
            if not len(open_.parent):
                break
        return joined(result)

    def _ranking(self, nodes: Beams, open_: Candidates) -> Tensor:
        if not self.is_normalized:
            return open_.score
        return open_.score / (nodes.count[open_.parent] + (open_.token >= 0) + 1)

    def _best_open(self, nodes: Beams, open_: Candidates, utterances: int) -> Tensor:
        """(U,) score of the best open hypothesis."""
        whose = nodes.utterance[open_.parent]
        rows = best_rows(whose, self._ranking(nodes, open_), 1)
        return open_.score.new_full((utterances,), NEVER).index_put((whose[rows],), open_.score[rows])

    def _expanded(self, nodes: Beams, chosen: Candidates, now: Tensor) -> Beams:
        is_new = chosen.token >= 0
        old = nodes.select(chosen.parent[~is_new]).scored(chosen.score[~is_new])
        return joined([old, grow_chosen(self.grower, nodes, chosen.select(is_new), now)]) if bool(is_new.any()) else old


def _without(open_: Candidates, rows: Tensor) -> Candidates:
    is_left = torch.ones_like(open_.parent, dtype=torch.bool)
    is_left[rows] = False
    return open_.select(is_left)


def _joined(open_: Candidates, found: Candidates, *, offset: int) -> Candidates:
    return Candidates(
        torch.cat([open_.parent, found.parent + offset]),
        torch.cat([open_.token, found.token]),
        torch.cat([open_.log_prob.double(), found.log_prob.double()]),
        torch.cat([open_.score, found.score]),
    )
