"""Searches of transducers: the greedy one, and how each search is made for a model."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tympan.decode.load import LoadedModel
from tympan.decode.ngram_scorer import NgramFullScorer, load_ngram_scorer
from tympan.decode.options import DecodeOptions
from tympan.decode.search import Encoded, Ended
from tympan.decode.transducer_beam_search import AlignmentLengthSearch, FrameBeamSearch
from tympan.decode.transducer_beams import Grower
from tympan.decode.transducer_fusion import Fusion, InternalLm, LengthText, LmText, NgramText, TextScorer
from tympan.decode.transducer_kinds import ALSD, DEFAULT, GREEDY, MAES, NSC, TSD
from tympan.decode.transducer_steps import AdaptiveExpansion, BestFirst, NStep, TimeSync
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
        after = greedy_accept(self.parts, before, frames, encoded.lengths, max_symbols=self.max_symbols)
        return Greedy(state.utterances, after)

    def partial(self, state: Greedy) -> list[Ended]:
        return [Ended((), 0.0, {}, spans=())] * state.utterances if state.state is None else _results(state.state)

    def finish(self, state: Greedy) -> list[list[Ended]]:
        scores = [] if state.state is None else state.state.score.isfinite().tolist()
        finite = scores or [True] * state.utterances
        return [[best] if is_finite else [] for best, is_finite in zip(self.partial(state), finite, strict=True)]


def _results(state: GreedyState) -> list[Ended]:
    rows = zip(
        state.score.tolist(),
        state.count.tolist(),
        state.emissions.tolist(),
        state.log_probs.exp().tolist(),
        strict=True,
    )
    found = []
    for score, count, emissions, probabilities in rows:
        tokens = tuple(token for token, _, _ in emissions[:count])
        spans = zip(emissions[:count], probabilities, strict=False)
        timed = tuple((start, end, min(probability, 1.0)) for (_, start, end), probability in spans)
        found.append(Ended(tokens, score, {"transducer": score}, spans=timed))
    return found


def build_greedy(loaded: LoadedModel, options: DecodeOptions) -> GreedyTransducer:
    own = GREEDY.own_options(options.search_conf)
    return GreedyTransducer(parts_of(loaded), max_symbols=own.max_sym_exp)


def build_default(loaded: LoadedModel, options: DecodeOptions) -> FrameBeamSearch:
    own = DEFAULT.own_options(options.search_conf)
    step = BestFirst(
        _grower(loaded, options, own.ilm_weight), beam=_beam(loaded, options), is_normalized=own.score_norm_during
    )
    return FrameBeamSearch(step, ranks_by_length=own.score_norm)


def build_tsd(loaded: LoadedModel, options: DecodeOptions) -> FrameBeamSearch:
    own = TSD.own_options(options.search_conf)
    step = TimeSync(
        _grower(loaded, options, own.ilm_weight),
        beam=_beam(loaded, options),
        max_sym_exp=own.max_sym_exp,
        is_normalized=own.score_norm_during,
    )
    return FrameBeamSearch(step, ranks_by_length=own.score_norm)


def build_alsd(loaded: LoadedModel, options: DecodeOptions) -> AlignmentLengthSearch:
    own = ALSD.own_options(options.search_conf)
    return AlignmentLengthSearch(
        _grower(loaded, options, own.ilm_weight),
        beam=_beam(loaded, options),
        u_max=own.u_max,
        is_normalized=own.score_norm_during,
        ranks_by_length=own.score_norm,
    )


def build_nsc(loaded: LoadedModel, options: DecodeOptions) -> FrameBeamSearch:
    own = NSC.own_options(options.search_conf)
    grower = _grower(loaded, options, own.ilm_weight, past=own.prefix_alpha)
    step = NStep(grower, beam=_beam(loaded, options), nstep=own.nstep)
    return FrameBeamSearch(step, ranks_by_length=own.score_norm)


def build_maes(loaded: LoadedModel, options: DecodeOptions) -> FrameBeamSearch:
    own = MAES.own_options(options.search_conf)
    step = AdaptiveExpansion(
        _grower(loaded, options, own.ilm_weight, past=own.prefix_alpha),
        beam=_beam(loaded, options),
        nstep=max(own.nstep, 2),
        beta=own.expansion_beta,
        gamma=own.expansion_gamma,
    )
    return FrameBeamSearch(step, ranks_by_length=own.score_norm)


def parts_of(loaded: LoadedModel) -> TransducerParts:
    if not isinstance(loaded.model, TransducerModel):
        raise UserError("this search needs a transducer: a model with decoder transducer or stateless")
    return loaded.model.transducer_parts


def _beam(loaded: LoadedModel, options: DecodeOptions) -> int:
    return min(options.beam_size, loaded.model.vocab_size)


def _grower(loaded: LoadedModel, options: DecodeOptions, ilm_weight: float, *, past: int = 0) -> Grower:
    parts = parts_of(loaded)
    if len(parts.durations) > 1 or parts.joint.durations:
        raise UserError("models with big blanks or durations (tdt_durations) are decoded with search transducer_greedy")
    return Grower(parts, Fusion(_scorers(loaded, options, parts, ilm_weight)), past=past)


def _scorers(
    loaded: LoadedModel, options: DecodeOptions, parts: TransducerParts, ilm_weight: float
) -> dict[str, tuple[TextScorer, float]]:
    scorers: dict[str, tuple[TextScorer, float]] = {}
    if loaded.lm is not None and options.lm_weight != 0:
        scorers["lm"] = (LmText(loaded.lm), options.lm_weight)
    if loaded.ngram_file is not None and options.ngram_weight != 0:
        ngram = load_ngram_scorer(
            loaded.ngram_file, loaded.codec.vocabulary.tokens, eos=None, device=loaded.device, is_full=True
        )
        if not isinstance(ngram, NgramFullScorer):
            raise UserError(
                "searches of transducers take an n-gram as an ARPA file or Tympan's binary file, not KenLM's"
            )
        scorers["ngram"] = (NgramText(ngram), options.ngram_weight)
    if ilm_weight != 0:
        scorers["ilm"] = (InternalLm(parts), -ilm_weight)
    if options.penalty != 0:
        scorers["length_bonus"] = (LengthText(parts.joint.vocab_size), options.penalty)
    return scorers
