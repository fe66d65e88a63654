"""Beam searches of transducers: frame by frame (`transducer_steps`), or by the length of the alignment (ALSD)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tympan.decode.search import Encoded, Ended
from tympan.decode.transducer_beams import Beams, Grower, best_rows, joined, merged, results
from tympan.decode.transducer_steps import FrameStep, after_blank, best, candidates
from tympan.decode.whole import Collected, WholeUtteranceSearch


@dataclass(frozen=True)
class FrameState:
    """The hypotheses after the frames `seen` (U,) so far; None before the first frame."""

    utterances: int
    beams: Beams | None = None
    seen: Tensor | None = None


class FrameBeamSearch:
    """A beam search that goes frame by frame."""

    def __init__(self, step: FrameStep, *, ranks_by_length: bool) -> None:
        self.step = step
        self.ranks_by_length = ranks_by_length

    def start(self, utterances: int) -> FrameState:
        return FrameState(utterances)

    @torch.inference_mode()
    def accept(self, state: FrameState, encoded: Encoded) -> FrameState:
        grower = self.step.grower
        frames = grower.parts.joint.project_frames(encoded.memory)
        beams = grower.empty(frames) if state.beams is None else state.beams
        seen = torch.zeros_like(encoded.lengths) if state.seen is None else state.seen
        for place in range(int(encoded.lengths.max())):
            is_heard = encoded.lengths[beams.utterance] > place
            after = self.step(beams.select(is_heard), frames[:, place], seen + place)
            beams = joined([beams.select(~is_heard), after])
        return FrameState(state.utterances, beams, seen + encoded.lengths)

    def partial(self, state: FrameState) -> list[Ended]:
        nothing = Ended((), 0.0, {}, spans=())
        return [found[0] if found else nothing for found in self.finish(state)]

    def finish(self, state: FrameState) -> list[list[Ended]]:
        if state.beams is None:
            return [[] for _ in range(state.utterances)]
        fusion = self.step.grower.fusion
        return results(state.beams, fusion, utterances=state.utterances, is_normalized=self.ranks_by_length)


class AlignmentLengthSearch(WholeUtteranceSearch):
    """`alsd` (Saon et al. 2020): hypotheses of the same number of tokens and blanks compete."""

    def __init__(self, grower: Grower, *, beam: int, u_max: int, is_normalized: bool, ranks_by_length: bool) -> None:
        self.grower = grower
        self.beam = beam
        self.u_max = u_max
        self.is_normalized = is_normalized
        self.ranks_by_length = ranks_by_length

    @torch.inference_mode()
    def finish(self, state: Collected) -> list[list[Ended]]:
        if not state.pieces:
            return [[] for _ in range(state.utterances)]
        encoded = state.joined()
        frames = self.grower.parts.joint.project_frames(encoded.memory)
        lengths = encoded.lengths
        steps = lengths + torch.minimum(lengths - 1, torch.full_like(lengths, self.u_max)).clamp(min=0)
        beams, ended = self.grower.empty(frames), []
        for step in range(int(steps.max())):
            place = step - beams.count
            goes_on = (place < lengths[beams.utterance]) & (step < steps[beams.utterance])
            if not bool(goes_on.any()):
                break
            active = beams.select(goes_on)
            after, last = self._advance(active, frames, place[goes_on], lengths)
            ended.append(after.select(last))
            rest = beams.select(~torch.isin(beams.utterance, active.utterance))
            chosen = best(after, self.beam, is_normalized=self.is_normalized)
            beams = joined([rest, merged(chosen)])
        found = joined(ended) if ended else beams
        # An utterance whose beam never reached the last frame: what there is
        missing = beams.select(~torch.isin(beams.utterance, found.utterance))
        return results(
            joined([found, missing]),
            self.grower.fusion,
            utterances=state.utterances,
            is_normalized=self.ranks_by_length,
        )

    def _advance(self, beams: Beams, frames: Tensor, place: Tensor, lengths: Tensor) -> tuple[Beams, Tensor]:
        """Everything that follows by one blank or token, and which of it has passed the last frame."""
        log_probs = self.grower.parts.log_probs(frames[beams.utterance, place], beams.prediction)
        blank = after_blank(self.grower, beams, log_probs)
        found = candidates(self.grower, beams, log_probs, count=self.beam)
        # Only what may stay in the beam needs its prediction
        whose = torch.cat([blank.utterance, beams.utterance[found.parent]])
        length = torch.cat([blank.count, beams.count[found.parent] + 1]) + 1
        score = torch.cat([blank.score, found.score])
        chosen = best_rows(whose, score / length if self.is_normalized else score, self.beam)
        kept = found.select(chosen[chosen >= len(blank)] - len(blank))
        # `place` is the frame of each hypothesis, not of each utterance
        parents = beams.select(kept.parent)
        grown = self.grower.grow(
            parents, kept.token, scores=kept.score, frames=place[kept.parent], log_probs=kept.log_prob
        )
        has_ended = place == lengths[beams.utterance] - 1
        return joined([blank, grown]), torch.cat([has_ended, has_ended.new_zeros(len(grown))])
