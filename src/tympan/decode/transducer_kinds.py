"""The transducer searches that a user can choose. This module does not import torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tympan.config.option import option
from tympan.decode.search import SearchKind
from tympan.errors import UserError

MOST_EXPANSIONS = 100
"""Per frame of about 40 ms; a model that is not trained yet uses all of them."""


@dataclass(frozen=True, kw_only=True)
class GreedyOptions:
    """`search_conf` of transducer_greedy."""

    max_sym_exp: int = option(
        30, help="maximum number of tokens per frame; 1 as ESPnet2's greedy search", least=1, most=MOST_EXPANSIONS
    )


@dataclass(frozen=True, kw_only=True)
class BeamOptions:
    """Options of every beam search of a transducer."""

    score_norm: bool = option(True, help="rank the final hypotheses by score divided by length")
    ilm_weight: float = option(
        0.0, help="weight of the internal language model, whose scores are subtracted", least=0, most=1
    )


@dataclass(frozen=True, kw_only=True)
class DefaultOptions(BeamOptions):
    """`search_conf` of transducer_default."""

    score_norm_during: bool = option(False, help="compare scores divided by length while searching")


@dataclass(frozen=True, kw_only=True)
class TsdOptions(DefaultOptions):
    """`search_conf` of transducer_tsd."""

    max_sym_exp: int = option(
        2, help="number of expansions per frame, the last without a token", least=1, most=MOST_EXPANSIONS
    )


@dataclass(frozen=True, kw_only=True)
class AlsdOptions(DefaultOptions):
    """`search_conf` of transducer_alsd."""

    u_max: int = option(50, help="maximum number of tokens", least=1, most=1_000_000)


@dataclass(frozen=True, kw_only=True)
class NscOptions(BeamOptions):
    """`search_conf` of transducer_nsc."""

    nstep: int = option(1, help="number of expansions per frame", least=1, most=MOST_EXPANSIONS)
    prefix_alpha: int = option(
        1, help="how many tokens shorter a prefix may be whose ways are added to a hypothesis", least=0, most=100
    )


@dataclass(frozen=True, kw_only=True)
class MaesOptions(BeamOptions):
    """`search_conf` of transducer_maes."""

    nstep: int = option(2, help="number of expansions per frame, at least 2", least=1, most=MOST_EXPANSIONS)
    prefix_alpha: int = option(
        1, help="how many tokens shorter a prefix may be whose ways are added to a hypothesis", least=0, most=100
    )
    expansion_gamma: float = option(
        2.3, help="largest difference in log probability to the best candidate of a hypothesis", least=0, most=1000
    )
    expansion_beta: int = option(2, help="number of candidates beyond the beam size", least=0, most=1000)


_USES = ("beam_size", "nbest", "lm_weight", "ngram_weight", "penalty")

GREEDY = SearchKind(
    "transducer_greedy",
    help="most likely token or blank of a transducer at every step",
    builder="tympan.decode.transducer_search:build_greedy",
    options=GreedyOptions,
)
DEFAULT = SearchKind(
    "transducer_default",
    help="beam search of a transducer, best hypothesis first",
    builder="tympan.decode.transducer_search:build_default",
    uses=_USES,
    options=DefaultOptions,
)
TSD = SearchKind(
    "transducer_tsd",
    help="time-synchronous beam search of a transducer",
    builder="tympan.decode.transducer_search:build_tsd",
    uses=_USES,
    options=TsdOptions,
)
ALSD = SearchKind(
    "transducer_alsd",
    help="alignment-length synchronous beam search of a transducer",
    builder="tympan.decode.transducer_search:build_alsd",
    uses=_USES,
    options=AlsdOptions,
)
NSC = SearchKind(
    "transducer_nsc",
    help="beam search of a transducer with a fixed number of expansions per frame",
    builder="tympan.decode.transducer_search:build_nsc",
    uses=_USES,
    options=NscOptions,
)
MAES = SearchKind(
    "transducer_maes",
    help="beam search of a transducer that only expands likely tokens",
    builder="tympan.decode.transducer_search:build_maes",
    uses=_USES,
    options=MaesOptions,
)

_TYPES = {"default": DEFAULT, "tsd": TSD, "alsd": ALSD, "nsc": NSC, "maes": MAES, "mbg": GREEDY}
MBG_SYMBOLS = 4
"""Tokens per frame of ESPnet2's multi-blank greedy search."""


def from_transducer_conf(conf: Mapping[str, Any], *, beam_size: int) -> dict[str, Any]:
    """`search`, `search_conf` and perhaps `nbest` for ESPnet2's `transducer_conf`.

    As in ESPnet2, options of other searches are accepted and change nothing, and a beam size of 1 is a greedy search.
    """
    given = dict(conf)
    name = given.pop("search_type", "default")
    if not isinstance(name, str) or name not in _TYPES:
        raise UserError(f"transducer_conf search_type must be one of {', '.join(_TYPES)}, found '{name}'")
    nbest = {"nbest": given.pop("nbest")} if "nbest" in given else {}
    known = {item.name for kind in _TYPES.values() if kind.options for item in dataclasses.fields(kind.options)}
    if unknown := [key for key in given if key not in known]:
        raise UserError(
            f"transducer_conf has no key '{unknown[0]}'; known: search_type, nbest, {', '.join(sorted(known))}"
        )
    if name == "mbg":
        return {"search": GREEDY.name, "search_conf": {"max_sym_exp": MBG_SYMBOLS}, **nbest}
    if beam_size == 1:
        return {"search": GREEDY.name, "search_conf": {"max_sym_exp": 1}, **nbest}
    kind = _TYPES[name]
    assert kind.options is not None
    mine = {item.name for item in dataclasses.fields(kind.options)}
    return {"search": kind.name, "search_conf": {k: v for k, v in given.items() if k in mine}, **nbest}
