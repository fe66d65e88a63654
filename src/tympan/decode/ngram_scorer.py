"""N-gram scores in the search, for the whole vocabulary or for candidates. As in ESPnet, they are log10."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from tympan.decode.kenlm_scorer import KenlmFullScorer, KenlmPartScorer
from tympan.decode.ngram_table import NgramTable
from tympan.decode.search import Encoded
from tympan.nn.beam_state import STATIC, BeamState
from tympan.text.ngram.load import is_kenlm_binary, load_ngram
from tympan.text.ngram.model import NgramModel


@dataclass(frozen=True)
class NgramState(BeamState):
    context: Tensor  # (U, B)
    is_begin: bool = field(metadata=STATIC)
    """True at the first step: sos is already part of the context."""


class NgramFullScorer:
    """Scores the whole vocabulary (`--ngram_scorer full`)."""

    def __init__(self, model: NgramModel, token_list: Sequence[str], *, eos: int | None, device: torch.device) -> None:
        """`eos`: the token to score as </s>, as in ESPnet1. None: ESPnet2's behaviour, which looks up `<sos/eos>` as a
        word and scores it as unknown.
        """
        numbers = {word: number for number, word in enumerate(model.words)}
        words = [numbers.get(token, numbers["<unk>"]) for token in token_list]
        if eos is not None:
            words[eos] = numbers["</s>"]
        self.unknown_tokens = [token for token, word in zip(token_list, words, strict=True) if word == numbers["<unk>"]]
        self.word_of_token = torch.tensor(words, device=device)
        self.table = NgramTable.from_model(model, device)

    def start(self, encoded: Encoded, beams: int) -> NgramState:
        shape = (encoded.utterances, beams)
        context = torch.full(shape, self.table.begin, dtype=torch.long, device=self.word_of_token.device)
        return NgramState(context=context, is_begin=True)

    def step(self, tokens: Tensor, state: NgramState) -> tuple[Tensor, NgramState]:
        """Last tokens (U, B) -> log10 scores of every next token (U, B, V)."""
        state = self._advance(tokens, state)
        scores = self.table.distribution(state.context.flatten())
        return scores.index_select(1, self.word_of_token).view(*tokens.shape, -1), state

    def _advance(self, tokens: Tensor, state: NgramState) -> NgramState:
        if state.is_begin:
            return NgramState(context=state.context, is_begin=False)
        context = self.table.advance(state.context, self.word_of_token[tokens])
        return NgramState(context=context, is_begin=False)


class NgramPartScorer(NgramFullScorer):
    """Scores only candidates (`--ngram_scorer part`)."""

    def step(self, tokens: Tensor, state: NgramState, *, candidates: Tensor | None = None) -> tuple[Tensor, NgramState]:
        """Last tokens (U, B) -> log10 scores of the candidates (U, B, C)."""
        if candidates is None:
            return super().step(tokens, state)
        state = self._advance(tokens, state)
        return self.table.score(state.context.unsqueeze(-1), self.word_of_token[candidates]), state


def load_ngram_scorer(
    path: str | os.PathLike[str],
    token_list: Sequence[str],
    *,
    eos: int | None,
    device: torch.device,
    is_full: bool = True,
) -> NgramFullScorer | KenlmFullScorer:
    """A scorer from an ARPA file, Tympan's binary file, or KenLM's."""
    if is_kenlm_binary(path):
        scorer = KenlmFullScorer if is_full else KenlmPartScorer
        return scorer(Path(path), token_list, eos=eos, device=device)
    kind = NgramFullScorer if is_full else NgramPartScorer
    return kind(load_ngram(path), token_list, eos=eos, device=device)
