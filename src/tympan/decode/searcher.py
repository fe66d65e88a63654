"""The search that the settings ask for, over the scorers that the model has."""

from __future__ import annotations

from typing import Any

import torch

from tympan.decode.ctc_beam import ctc_prefix_beam_search
from tympan.decode.ctc_greedy import ctc_greedy
from tympan.decode.ctc_prefix import CtcPrefixScorer
from tympan.decode.ended import Ended
from tympan.decode.lexicon_search import LexiconSearch
from tympan.decode.limits import LengthLimits
from tympan.decode.rescore import rescore
from tympan.decode.scorer import Encoded, FullScorer, PartialScorer
from tympan.decode.scorers import AttentionScorer, LengthBonus, LmScorer
from tympan.decode.search import BeamSearch, Weighted
from tympan.decode.settings import DecodeSettings
from tympan.errors import UserError
from tympan.models.decoder.rnn import RnnDecoder

MAX_SCORES = 32_000_000
"""Utterances times beams times tokens: 128 MB for each scorer in float32."""


class Searcher:
    """Encoded utterances in, ranked hypotheses out. `lm` is a neural model, `ngram` a scorer of either form."""

    def __init__(
        self,
        model: Any,
        settings: DecodeSettings,
        *,
        lm: Any | None = None,
        ngram: FullScorer | PartialScorer | None = None,
        lexicon_search: LexiconSearch | None = None,
    ) -> None:
        self.settings = settings
        self.lexicon_search = lexicon_search
        self.model = model
        if model.ctc is None and settings.search != "joint":
            raise UserError(f"search {settings.search} needs CTC, and this model was trained without (ctc_weight 0)")
        if settings.search == "rescore" and settings.ngram_scorer == "part" and ngram is not None:
            raise UserError("search rescore scores whole texts: use ngram_scorer full")
        self.full = self._full_scorers(lm, ngram)
        self.partial = self._partial_scorers(ngram)
        if settings.search == "joint" and not (self.full.keys() - {"length_bonus"}) and not self.partial:
            parts = (
                f"{'no' if model.decoder is None else 'a'} decoder and {'no' if model.ctc is None else 'a'} CTC part"
            )
            raise UserError(
                f"nothing is left to search with: ctc_weight {settings.ctc_weight:g} counts CTC so much and the "
                f"decoder {1 - settings.ctc_weight:g}, but this model has {parts}"
            )

    def __call__(self, encoded: Encoded) -> list[list[Ended]]:
        """In as many parts as the scores of all beams over the vocabulary need to fit."""
        beam_size = 1 if self.settings.search == "ctc_greedy" else self.settings.beam_size
        size = max(1, MAX_SCORES // (beam_size * self.model.vocab_size))
        if size >= encoded.utterances:
            return self._search(encoded)
        rows = torch.arange(encoded.utterances, device=encoded.lengths.device)
        return [hypotheses for part in rows.split(size) for hypotheses in self._search(encoded.select(part))]

    def _search(self, encoded: Encoded) -> list[list[Ended]]:
        settings, model = self.settings, self.model
        if settings.search == "ctc_greedy":
            return ctc_greedy(encoded, blank_id=model.blank_id)
        if settings.search == "lexicon":
            assert self.lexicon_search is not None
            return self.lexicon_search(encoded, nbest=settings.nbest)
        if settings.search == "joint":
            return self._joint()(encoded, LengthLimits(settings.maxlenratio, settings.minlenratio))
        found = ctc_prefix_beam_search(encoded, beam_size=settings.beam_size, blank_id=model.blank_id)
        if settings.search == "ctc_prefix":
            return found
        return rescore(
            encoded,
            found,
            full=self.full,
            first_weights={"ctc": settings.ctc_weight},
            sos=model.sos,
            eos=model.eos,
            is_length_normalized=settings.normalize_length,
        )

    def _joint(self) -> BeamSearch:
        return BeamSearch(
            self.full,
            self.partial,
            beam_size=self.settings.beam_size,
            sos=self.model.sos,
            eos=self.model.eos,
            vocab_size=self.model.vocab_size,
            # A language model alone knows too little of what was said to choose the candidates for CTC.
            has_pre_beam="decoder" in self.full,
            # ESPnet2 searches one by one with an RNN decoder, and that search offers no end of its own.
            offers_end=not ("decoder" in self.full and isinstance(self.model.decoder, RnnDecoder)),
            is_length_normalized=self.settings.normalize_length,
        )

    def _full_scorers(self, lm: Any | None, ngram: Any | None) -> dict[str, Weighted]:
        settings, model = self.settings, self.model
        scorers = {}
        if model.decoder is not None and settings.ctc_weight < 1.0:
            scorers["decoder"] = Weighted(AttentionScorer(model.decoder), 1.0 - settings.ctc_weight)
        if lm is not None and settings.lm_weight != 0:
            scorers["lm"] = Weighted(LmScorer(lm), settings.lm_weight)
        if ngram is not None and settings.ngram_weight != 0 and settings.ngram_scorer == "full":
            scorers["ngram"] = Weighted(ngram, settings.ngram_weight)
        if settings.penalty != 0:
            scorers["length_bonus"] = Weighted(LengthBonus(model.vocab_size), settings.penalty)
        return scorers

    def _partial_scorers(self, ngram: Any | None) -> dict[str, Weighted]:
        settings, model = self.settings, self.model
        scorers = {}
        if model.ctc is not None and settings.ctc_weight > 0:
            ctc = CtcPrefixScorer(blank_id=model.blank_id, eos=model.eos)
            scorers["ctc"] = Weighted(ctc, settings.ctc_weight)
        if ngram is not None and settings.ngram_weight != 0 and settings.ngram_scorer == "part":
            scorers["ngram"] = Weighted(ngram, settings.ngram_weight)
        return scorers
