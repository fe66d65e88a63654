"""Character and word error rates during validation, counted as in ESPnet2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from rapidfuzz.distance import Levenshtein
from torch import Tensor

from tympan.models.loss import Stat


@dataclass(frozen=True)
class ErrorCounter:
    """Errors divided by reference length. Reads tensors on the host: for validation only."""

    token_list: tuple[str, ...]
    space: str
    blank: str

    def count_ctc(self, best: Tensor, lengths: Tensor, text: Tensor, text_lengths: Tensor) -> Stat:
        """Character errors of the best path: best (batch, time) tokens of frames."""
        errors = characters = 0
        for path, reference in zip(_cut(best, lengths), _cut(text, text_lengths), strict=True):
            ignored = {self.blank, self.space}
            hypothesis = [token for token, _ in groupby(path)]
            hypothesis_text, reference_text = (
                "".join(token for token in self._tokens(ids) if token not in ignored) for ids in (hypothesis, reference)
            )
            if reference_text:
                errors += Levenshtein.distance(hypothesis_text, reference_text)
                characters += len(reference_text)
        return _stat(errors, characters, best)

    def count_attention(self, best: Tensor, text: Tensor, text_lengths: Tensor) -> dict[str, Stat]:
        """`cer` and `wer` of the best token at each position, given the correct previous ones: best (batch, length)."""
        errors = {"cer": 0, "wer": 0}
        units = {"cer": 0, "wer": 0}
        for hypothesis, reference in zip(_cut(best, text_lengths), _cut(text, text_lengths), strict=True):
            self._count(self._text(hypothesis), self._text(reference), errors, units)
        return {name: _stat(errors[name], units[name], best) for name in errors}

    def count_texts(self, hypotheses: Sequence[Sequence[int]], text: Tensor, text_lengths: Tensor) -> dict[str, Stat]:
        """`cer` and `wer` of decoded token ids, without spaces and blanks for `cer`."""
        errors = {"cer": 0, "wer": 0}
        units = {"cer": 0, "wer": 0}
        for hypothesis, reference in zip(hypotheses, _cut(text, text_lengths), strict=True):
            self._count(self._text(hypothesis), self._text(reference), errors, units)
        return {name: _stat(errors[name], units[name], text) for name in errors}

    def _count(self, hypothesis: str, reference: str, errors: dict[str, int], units: dict[str, int]) -> None:
        hypothesis = hypothesis.replace(self.blank, "")
        characters = hypothesis.replace(" ", ""), reference.replace(" ", "")
        errors["cer"] += Levenshtein.distance(*characters)
        units["cer"] += len(characters[1])
        words = hypothesis.split(), reference.split()
        errors["wer"] += Levenshtein.distance(*words)
        units["wer"] += len(words[1])

    def _tokens(self, ids: Sequence[int]) -> list[str]:
        return [self.token_list[token] for token in ids]

    def _text(self, ids: Sequence[int]) -> str:
        return "".join(self._tokens(ids)).replace(self.space, " ")


def _cut(ids: Tensor, lengths: Tensor) -> list[list[int]]:
    return [row[:length] for row, length in zip(ids.tolist(), lengths.tolist(), strict=True)]


def _stat(errors: int, units: int, like: Tensor) -> Stat:
    return Stat(*torch.tensor([errors, units], dtype=torch.float32, device=like.device))
