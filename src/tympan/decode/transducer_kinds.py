"""The searches of transducers as a user chooses them. This module imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from tympan.config.option import option
from tympan.decode.search import SearchKind


@dataclass(frozen=True, kw_only=True)
class GreedyOptions:
    """`search_conf` of transducer_greedy."""

    max_sym_exp: int = option(
        30, help="maximum number of tokens per encoder frame; 1: as ESPnet2's greedy search", least=1, most=1000
    )


GREEDY = SearchKind(
    "transducer_greedy",
    help="most likely token or blank at every step of a transducer",
    builder="tympan.decode.transducer_search:build_greedy",
    options=GreedyOptions,
)
