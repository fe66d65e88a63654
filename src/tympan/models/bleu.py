"""Character BLEU for validation, as in ESPnet2: it shows progress during training, and is not a score to report.

`tympan.score.translation` scores translations with sacrebleu. This one needs no extra package and no decoding.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from tympan.models.loss import Stat

MAX_ORDER = 4


@dataclass(frozen=True)
class BleuCounter:
    """Mean BLEU of the utterances, in percent. Reads tensors on the host: for validation only.

    Differs from ESPnet2 on purpose. It takes the n-grams of a whole batch together, so that the value depends on the
    batch; here each utterance has its own BLEU. Its BLEU of CTC is between 0 and 1; here it is in percent too.
    """

    token_list: tuple[str, ...]
    space: str
    blank: str

    def count_attention(self, best: Tensor, text: Tensor, text_lengths: Tensor) -> Stat:
        """BLEU of the best token at each position, given the correct previous tokens: best (batch, length)."""
        rows = zip(best.tolist(), text.tolist(), text_lengths.tolist(), strict=True)
        pairs = [
            (self._text(ids[:length]).replace(self.blank, ""), self._text(ref[:length])) for ids, ref, length in rows
        ]
        return self._mean(pairs, like=best)

    def count_ctc(self, best: Tensor, lengths: Tensor, text: Tensor, text_lengths: Tensor) -> Stat:
        """BLEU of the best CTC path: best (batch, time) tokens of frames. Spaces are removed."""
        rows = zip(best.tolist(), lengths.tolist(), text.tolist(), text_lengths.tolist(), strict=True)
        pairs = [
            (self._visible([token for token, _ in groupby(path[:frames])]), self._visible(ref[:length]))
            for path, frames, ref, length in rows
        ]
        return self._mean(pairs, like=best)

    def _mean(self, pairs: Sequence[tuple[str, str]], *, like: Tensor) -> Stat:
        total = sum(100.0 * character_bleu(hypothesis, reference) for hypothesis, reference in pairs)
        return Stat(*torch.tensor([total, len(pairs)], dtype=torch.float32, device=like.device))

    def _text(self, ids: Sequence[int]) -> str:
        return "".join(self.token_list[token] for token in ids).replace(self.space, " ")

    def _visible(self, ids: Sequence[int]) -> str:
        tokens = (self.token_list[token] for token in ids)
        return "".join(token for token in tokens if token not in (self.blank, self.space))


def character_bleu(hypothesis: str, reference: str) -> float:
    """BLEU (Papineni et al. 2002) of one text, over its characters, without smoothing: 0 to 1."""
    log_precision = 0.0
    for order in range(1, MAX_ORDER + 1):
        found, expected = _ngrams(hypothesis, order), _ngrams(reference, order)
        matches = (found & expected).total()
        if matches == 0:
            return 0.0
        log_precision += math.log(matches / found.total()) / MAX_ORDER
    brevity = min(0.0, 1.0 - len(reference) / len(hypothesis))
    return math.exp(log_precision + brevity)


def _ngrams(text: str, order: int) -> Counter[str]:
    return Counter(text[start : start + order] for start in range(len(text) - order + 1))
