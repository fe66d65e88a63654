"""The searches that combine all scorers: `joint`, token by token, and `rescore`, a second pass over CTC's n-best list.

Both need the whole encoding of an utterance, so the decoder runs in `finish`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tympan.decode.beam_search import BeamSearch, Full, LengthLimits, Weighted, rank
from tympan.decode.ctc_prefix import CtcPrefixScorer
from tympan.decode.ctc_search import CtcPrefixSearch, PrefixState
from tympan.decode.kenlm_scorer import KenlmFullScorer, KenlmPartScorer
from tympan.decode.load import LoadedModel
from tympan.decode.ngram_scorer import NgramFullScorer, NgramPartScorer, load_ngram_scorer
from tympan.decode.options import DecodeOptions
from tympan.decode.prompt import PromptedScorer, read_prompt
from tympan.decode.scorer import AttentionScorer, FullScorer, LengthBonus, LmScorer, PartialScorer, PlacedScorer
from tympan.decode.search import Encoded, Ended
from tympan.decode.whole import Collected, WholeUtteranceSearch
from tympan.errors import UserError
from tympan.models.decoder.rnn import RnnDecoder
from tympan.models.parts import LimitsTokens, StepDecoder
from tympan.models.speech_model import HasDecoder
from tympan.runtime.device import compiles_every_shape, search_device

Ngram = NgramFullScorer | KenlmFullScorer

MAX_SCORES = 32_000_000
"""Maximum number of scores at once (utterances times beams times tokens): 128 MB per scorer in float32."""


class JointSearch(WholeUtteranceSearch):
    """Beam search with attention decoder, CTC prefix score, language models and length bonus."""

    def __init__(self, beam: BeamSearch, limits: LengthLimits) -> None:
        self.beam = beam
        self.limits = limits

    def finish(self, state: Collected) -> list[list[Ended]]:
        encoded = state.joined()
        found: list[list[Ended]] = []
        for rows in _parts(encoded, self.beam.beam_size * self.beam.vocab_size):
            found += self.beam(encoded if rows is None else encoded.select(rows), self.limits)
        return found


@dataclass(frozen=True)
class RescoreState:
    collected: Collected
    first: PrefixState


class RescoreSearch:
    """Scores the hypotheses of CTC prefix search again with all other scorers, and ranks them by the sum."""

    def __init__(
        self, full: Full, *, first: CtcPrefixSearch, ctc_weight: float, sos: int, eos: int, vocab_size: int,
        is_length_normalized: bool,
    ) -> None:  # fmt: skip
        self.full = full
        self.first = first
        self.ctc_weight = ctc_weight
        self.sos = sos
        self.eos = eos
        self.vocab_size = vocab_size
        self.is_length_normalized = is_length_normalized

    def start(self, utterances: int) -> RescoreState:
        return RescoreState(Collected(utterances), self.first.start(utterances))

    def accept(self, state: RescoreState, encoded: Encoded) -> RescoreState:
        return RescoreState(state.collected.add(encoded), self.first.accept(state.first, encoded))

    def partial(self, state: RescoreState) -> list[Ended]:
        """The state of the first pass."""
        return self.first.partial(state.first)

    def finish(self, state: RescoreState) -> list[list[Ended]]:
        encoded, first = state.collected.joined(), self.first.finish(state.first)
        found: list[list[Ended]] = []
        for rows in _parts(encoded, self.first.beam_size * self.vocab_size):
            found += rescore(
                encoded if rows is None else encoded.select(rows),
                first if rows is None else [first[row] for row in rows.tolist()],
                full=self.full,
                first_weights={"ctc": self.ctc_weight},
                sos=self.sos,
                eos=self.eos,
                is_length_normalized=self.is_length_normalized,
            )
        return found


def build_joint(loaded: LoadedModel, options: DecodeOptions) -> JointSearch:
    """UserError if the weights leave nothing to search with."""
    model, decoder = loaded.model, _decoder(loaded)
    ngram = _ngram(loaded, options)
    full, partial = _full_scorers(loaded, options, ngram), _partial_scorers(loaded, options, ngram)
    if not (full.keys() - {"length_bonus"}) and not partial:
        parts = f"{'no' if decoder is None else 'a'} decoder and {'a' if model.has_ctc else 'no'} CTC part"
        raise UserError(
            f"the weights leave nothing to score hypotheses with: CTC has weight {options.ctc_weight:g} "
            f"(ctc_weight) and the decoder {1 - options.ctc_weight:g}, but this model has {parts}"
        )
    beam = BeamSearch(
        full,
        partial,
        beam_size=options.beam_size,
        sos=model.sos,
        eos=model.eos,
        vocab_size=model.vocab_size,
        # A language model does not hear the audio, so it can't select the candidates for CTC by itself.
        has_pre_beam="decoder" in full,
        # With an RNN decoder ESPnet2 decodes one utterance at a time, and that search does not always score eos.
        offers_end=not ("decoder" in full and isinstance(decoder, RnnDecoder)),
        is_length_normalized=options.normalize_length,
        has_fixed_shapes=compiles_every_shape(loaded.device.type),
    )
    return JointSearch(beam, LengthLimits(options.maxlenratio, options.minlenratio, _most_steps(loaded, options)))


def build_rescore(loaded: LoadedModel, options: DecodeOptions) -> RescoreSearch:
    if options.ngram_scorer == "part" and loaded.ngram_file is not None:
        raise UserError("search rescore scores complete hypotheses, so it needs --ngram_scorer full")
    model = loaded.model
    return RescoreSearch(
        _full_scorers(loaded, options, _ngram(loaded, options)),
        first=CtcPrefixSearch(blank_id=model.blank_id, beam_size=options.beam_size),
        ctc_weight=options.ctc_weight,
        sos=model.sos,
        eos=model.eos,
        vocab_size=model.vocab_size,
        is_length_normalized=options.normalize_length,
    )


def _decoder(loaded: LoadedModel) -> StepDecoder | None:
    return loaded.model.step_decoder if isinstance(loaded.model, HasDecoder) else None


def _most_steps(loaded: LoadedModel, options: DecodeOptions) -> int | None:
    """The number of tokens after the prompt that the decoder has positions for; None: any number."""
    decoder = _decoder(loaded)
    if not isinstance(decoder, LimitsTokens):
        return None
    prompt = read_prompt(loaded.model, loaded.codec, options)
    return decoder.max_tokens - (0 if prompt is None else len(prompt.tokens))


def _ngram(loaded: LoadedModel, options: DecodeOptions) -> Ngram | None:
    if loaded.ngram_file is None or options.ngram_weight == 0:
        return None
    vocabulary = loaded.codec.vocabulary
    return load_ngram_scorer(
        loaded.ngram_file,
        vocabulary.tokens,
        eos=vocabulary.eos_id if options.ngram_scores_end else None,
        device=search_device(loaded.device),
        is_full=options.ngram_scorer == "full",
    )


def _full_scorers(loaded: LoadedModel, options: DecodeOptions, ngram: Ngram | None) -> dict[str, Weighted[FullScorer]]:
    decoder = _decoder(loaded)
    scorers: dict[str, Weighted[FullScorer]] = {}
    weight = 1.0 - options.ctc_weight
    if decoder is not None and weight > 0.0:
        scorers["decoder"] = Weighted(_prompted(_placed(AttentionScorer(decoder), loaded), loaded, options), weight)
    if loaded.lm is not None and options.lm_weight != 0:
        scorers["lm"] = Weighted(_placed(LmScorer(loaded.lm), loaded), options.lm_weight)
    if ngram is not None and not isinstance(ngram, NgramPartScorer | KenlmPartScorer):
        scorers["ngram"] = Weighted(ngram, options.ngram_weight)
    if options.penalty != 0:
        scorers["length_bonus"] = Weighted(LengthBonus(loaded.model.vocab_size), options.penalty)
    return scorers


def _prompted(scorer: FullScorer, loaded: LoadedModel, options: DecodeOptions) -> FullScorer:
    """After the prompt, if the decoder was trained with one."""
    prompt = read_prompt(loaded.model, loaded.codec, options)
    return scorer if prompt is None else PromptedScorer(scorer, prompt)


def _placed(scorer: FullScorer, loaded: LoadedModel) -> FullScorer:
    """On the model's device, whether the search runs there or on the host."""
    return scorer if search_device(loaded.device) == loaded.device else PlacedScorer(scorer)


def _partial_scorers(
    loaded: LoadedModel, options: DecodeOptions, ngram: Ngram | None
) -> dict[str, Weighted[PartialScorer]]:
    scorers: dict[str, Weighted[PartialScorer]] = {}
    if loaded.model.has_ctc and options.ctc_weight > 0:
        ctc = CtcPrefixScorer(blank_id=loaded.model.blank_id, eos=loaded.model.eos)
        scorers["ctc"] = Weighted(ctc, options.ctc_weight)
    if isinstance(ngram, NgramPartScorer | KenlmPartScorer):
        scorers["ngram"] = Weighted(ngram, options.ngram_weight)
    return scorers


def _parts(encoded: Encoded, scores: int) -> Iterator[Tensor | None]:
    """Rows of the utterances to search at once, None for all of them. `scores` is the number of scores per utterance.

    The scores of all beams over the vocabulary must fit into memory. Batch planning does not consider this.
    """
    size = max(1, MAX_SCORES // scores)
    if size >= encoded.utterances:
        yield None
        return
    yield from torch.split(torch.arange(encoded.utterances, device=encoded.lengths.device), size)


@torch.inference_mode()
def rescore(
    encoded: Encoded,
    found: Sequence[Sequence[Ended]],
    *,
    full: Full,
    first_weights: Mapping[str, float],
    sos: int,
    eos: int,
    is_length_normalized: bool = False,
) -> list[list[Ended]]:
    """Add the scores of `full` (eos included) to those of the first pass, which are weighted by `first_weights`."""
    totals = {name: _walk(item, encoded, found, sos=sos, eos=eos) for name, item in full.items()}
    weights = {**first_weights, **{name: item.weight for name, item in full.items()}}
    ranked = []
    for row, hypotheses in enumerate(found):
        rescored = []
        for beam, hypothesis in enumerate(hypotheses):
            scores = {**hypothesis.scores, **{name: float(total[row, beam]) for name, total in totals.items()}}
            total = sum(weights[name] * value for name, value in scores.items())
            rescored.append(Ended(token_ids=hypothesis.token_ids, score=total, scores=scores))
        ranked.append(rank(rescored, is_length_normalized=is_length_normalized))
    return ranked


def _walk(
    item: Weighted[FullScorer], encoded: Encoded, found: Sequence[Sequence[Ended]], *, sos: int, eos: int
) -> Tensor:
    """(U, B) log score of every hypothesis, summed token by token."""
    beams = max(map(len, found))
    longest = max((len(h.token_ids) for hypotheses in found for h in hypotheses), default=0)
    targets = torch.full((len(found), beams, longest + 1), eos)
    lengths = torch.zeros(len(found), beams, dtype=torch.long)
    for row, hypotheses in enumerate(found):
        for beam, hypothesis in enumerate(hypotheses):
            targets[row, beam, : len(hypothesis.token_ids)] = torch.tensor(hypothesis.token_ids, dtype=torch.long)
            lengths[row, beam] = len(hypothesis.token_ids) + 1
    targets, lengths = targets.to(encoded.lengths.device), lengths.to(encoded.lengths.device)
    state = item.scorer.start(encoded, beams)
    tokens = torch.full_like(lengths, sos)
    total = torch.zeros_like(lengths, dtype=torch.float64)
    for step in range(longest + 1):
        scores, state = item.scorer.step(tokens, state)
        tokens = targets[:, :, step]
        chosen = scores.gather(2, tokens.unsqueeze(2)).squeeze(2).double()
        total = total + torch.where(step < lengths, chosen, 0.0)
    return total
