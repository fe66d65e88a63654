"""Searches of transducers."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tympan.decode.load import LoadedModel
from tympan.decode.options import DecodeOptions
from tympan.decode.search import Encoded, Ended
from tympan.decode.transducer_kinds import GREEDY
from tympan.errors import UserError
from tympan.models.transducer import TransducerModel
from tympan.models.transducer_greedy import GreedyState, TransducerParts, greedy_accept, greedy_start


@dataclass(frozen=True)
class Greedy:
    """The state of `GreedyTransducer`; None before the first frame."""

    utterances: int
    state: GreedyState | None = None


class GreedyTransducer:
    """The most likely token or blank at every step. The score is the log probability of that path."""

    def __init__(self, parts: TransducerParts, *, max_symbols: int) -> None:
        self.parts = parts
        self.max_symbols = max_symbols

    def start(self, utterances: int) -> Greedy:
        return Greedy(utterances)

    @torch.inference_mode()
    def accept(self, state: Greedy, encoded: Encoded) -> Greedy:
        frames = self.parts.joint.project_frames(encoded.memory)
        before = greedy_start(self.parts, frames) if state.state is None else state.state
        after = greedy_accept(
            self.parts, before, frames, encoded.lengths.to(frames.device), max_symbols=self.max_symbols
        )
        return Greedy(state.utterances, after)

    def partial(self, state: Greedy) -> list[Ended]:
        return [Ended((), 0.0, {})] * state.utterances if state.state is None else _results(state.state)

    def finish(self, state: Greedy) -> list[list[Ended]]:
        scores = [] if state.state is None else state.state.score.isfinite().tolist()
        finite = scores or [True] * state.utterances
        return [[best] if is_finite else [] for best, is_finite in zip(self.partial(state), finite, strict=True)]


def _results(state: GreedyState) -> list[Ended]:
    return [
        Ended(text, score, {"transducer": score}) for text, score in zip(state.texts, state.score.tolist(), strict=True)
    ]


def build_greedy(loaded: LoadedModel, options: DecodeOptions) -> GreedyTransducer:
    own = GREEDY.own_options(options.search_conf)
    return GreedyTransducer(parts_of(loaded), max_symbols=own.max_sym_exp)


def parts_of(loaded: LoadedModel) -> TransducerParts:
    if not isinstance(loaded.model, TransducerModel):
        raise UserError("this search needs a transducer: a model with decoder transducer or stateless")
    return loaded.model.transducer_parts
