"""How to search, in ESPnet2's words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tympan.errors import UserError

Search = Literal["joint", "ctc_greedy", "ctc_prefix", "rescore", "lexicon"]


@dataclass(frozen=True)
class DecodeSettings:
    """`joint`: attention, CTC, LM and n-gram together, token by token. `ctc_greedy`: the best CTC path.
    `ctc_prefix`: the best texts by CTC alone, frame by frame. `rescore`: those, ranked anew by all the others.
    `lexicon`: the words that CTC's phones make, with an n-gram of words.
    """

    search: Search = "joint"
    beam_size: int = 20
    nbest: int = 1
    ctc_weight: float = 0.5
    lm_weight: float = 1.0
    ngram_weight: float = 0.9
    ngram_scorer: Literal["full", "part"] = "full"
    ngram_scores_end: bool = False
    """The end of a sentence is </s> to the n-gram; ESPnet2 has it scored as an unknown word."""
    penalty: float = 0.0
    maxlenratio: float = 0.0
    minlenratio: float = 0.0
    normalize_length: bool = False

    def __post_init__(self) -> None:
        mistakes = []
        if self.beam_size < 1:
            mistakes.append(f"beam_size must be at least 1, found {self.beam_size}")
        if self.nbest < 1:
            mistakes.append(f"nbest must be at least 1, found {self.nbest}")
        if not 0.0 <= self.ctc_weight <= 1.0:
            mistakes.append(
                f"ctc_weight must lie between 0 (attention alone) and 1 (CTC alone), found {self.ctc_weight}"
            )
        if mistakes:
            raise UserError("\n".join(mistakes))
