"""How to search, in ESPnet2's words."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tympan.config.cast import CastError, cast
from tympan.config.espnet1 import translate_espnet1
from tympan.config.mistakes import Mistakes
from tympan.config.option import options_of
from tympan.config.parse import read_layer
from tympan.config.resolve import Conflict, Rules, resolve

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
        """From Python anything may be passed: what does not fit is told here, and 1 for a weight becomes 1.0."""
        mistakes = Mistakes()
        for name, option in options_of(DecodeSettings).items():
            try:
                object.__setattr__(self, name, cast(getattr(self, name), option.type))
            except CastError as error:
                mistakes.add("", f"{name} {error}")
        mistakes.check()
        for conflict in _out_of_range(vars(self)):
            mistakes.add("", f"{conflict.names[0]} {conflict.text}")
        mistakes.check()


def read_settings(path: Path) -> dict[str, Any]:
    """The settings that a model's folder brings (decode.yaml), checked: a mistake is told with file and line."""
    rules = Rules(translate=translate_espnet1, check=_out_of_range)
    layer = read_layer(path, rules)
    settings = dataclasses.asdict(resolve(DecodeSettings, [layer], rules=rules))
    return {name: settings[name] for name in layer.values}


def _out_of_range(values: Mapping[str, Any]) -> Iterator[Conflict]:
    for name, value in values.items():
        if isinstance(value, float) and not math.isfinite(value):
            yield Conflict((name,), f"must be a finite number, found {value}")
    for name in ("beam_size", "nbest"):
        if values[name] < 1:
            yield Conflict((name,), f"must be at least 1, found {values[name]}")
    weight = values["ctc_weight"]
    if math.isfinite(weight) and not 0.0 <= weight <= 1.0:
        yield Conflict(("ctc_weight",), f"must lie between 0 (attention alone) and 1 (CTC alone), found {weight}")
