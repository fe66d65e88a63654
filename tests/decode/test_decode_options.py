"""Decode options from Python and from a model's decode.yaml: mistakes are reported before the search."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tympan.decode.options import DecodeOptions
from tympan.decode.settings import read_settings
from tympan.errors import UserError


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"search": "beam"},
            "there is no search 'beam'. Known: joint, ctc_greedy, ctc_prefix, rescore, lexicon,",
        ),
        ({"search": "ctc_gredy"}, "Did you mean 'ctc_greedy'?"),
        ({"ngram_scorer": "ful"}, "ngram_scorer expects full | part, found 'ful' (text). Did you mean 'full'?"),
        ({"beam_size": "x"}, "beam_size expects int, found 'x'"),
        ({"beam_size": 2.5}, "beam_size expects int, found 2.5"),
        (
            {"beam_size": 0, "nbest": -1},
            "beam_size must be between 1 and 100000, found 0\n  nbest must be between 1 and 100000, found -1",
        ),
        ({"lm_weight": math.nan}, "lm_weight must be a finite number, found nan"),
        ({"ctc_weight": math.inf}, "ctc_weight must be between 0 and 1, found inf"),
        ({"ctc_weight": 1.5}, "ctc_weight must be between 0 and 1, found 1.5"),
        (
            {"transducer_conf": {"search_type": {}}},
            "search_type must be one of default, tsd, alsd, nsc, maes, mbg, found",
        ),
        ({"penalty": None}, "penalty expects float, found null"),
    ],
)
def test_options_that_do_not_fit_are_reported(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        DecodeOptions(**given)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "conf", [{}, {"search_type": "default", "score_norm": True}, {"search_type": "maes", "nstep": 3}]
)
def test_beam_size_1_of_transducer_conf_is_espnet2s_greedy_search(conf: dict[str, Any]) -> None:
    options = DecodeOptions(beam_size=1, transducer_conf=conf)
    assert (options.search, options.search_conf) == ("transducer_greedy", {"max_sym_exp": 1})


def test_numbers_of_any_kind_are_taken() -> None:
    settings = DecodeOptions(beam_size=np.int64(5), ctc_weight=1, lm_weight=np.float32(0.5))
    assert settings == DecodeOptions(beam_size=5, ctc_weight=1.0, lm_weight=0.5)
    assert [type(value) for value in (settings.beam_size, settings.ctc_weight, settings.lm_weight)] == [
        *(int, float, float)
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("search: beam\n", "decode.yaml:1: search: there is no search 'beam'"),
        ("beam_size: x\n", "decode.yaml:1: beam_size: expects int, found 'x'"),
        ("nbest: 2\nbeam_sise: 3\n", "decode.yaml:2: unknown option 'beam_sise'. Did you mean 'beam_size'?"),
        ("nbest: 2\nbeam_size: 0\n", "decode.yaml:2: beam_size: must be between 1 and 100000, found 0"),
        ("- 1\n", "decode.yaml: must be a mapping"),
    ],
)
def test_mistakes_of_a_file_are_reported_with_their_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "decode.yaml").write_text(text)
    with pytest.raises(UserError) as caught:
        read_settings(tmp_path / "decode.yaml")
    assert f"{tmp_path}/{message}" in str(caught.value)


def test_a_file_gives_only_the_options_it_names(tmp_path: Path) -> None:
    (tmp_path / "decode.yaml").write_text("lm_weight: 3e-1\nbeam_size: 4\n")
    assert read_settings(tmp_path / "decode.yaml") == {"lm_weight": 0.3, "beam_size": 4}


def test_a_file_of_espnet1_has_espnet1s_defaults(tmp_path: Path) -> None:
    (tmp_path / "decode.yaml").write_text("lm-weight: 0.3\nbeam-size: 4\n")
    defaults = {"ctc_weight": 0.0, "ngram_weight": 0.1, "ngram_scorer": "part"}
    assert read_settings(tmp_path / "decode.yaml") == {"lm_weight": 0.3, "beam_size": 4, **defaults}
