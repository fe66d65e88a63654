"""A user's own model class is decoded by the searches that it offers, if it implements what decoding needs."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_own_symbols import AUDIO, model

from tympan.decode.recognizer import Recognizer
from tympan.errors import UserError

TOKENS = ["<blank>", "<unk>", "a", "b", "c", "<sos/eos>"]


def test_the_first_search_of_a_model_is_its_default(tmp_path: Path) -> None:
    own = model(tmp_path / "own", TOKENS, model="own_model:GreedyFirst")
    usual = model(tmp_path / "usual", TOKENS)
    recognizer = Recognizer.from_pretrained(own, allow_import=True)
    assert recognizer.kind.name == "ctc_greedy"
    assert recognizer(AUDIO, rate=16000) == Recognizer.from_pretrained(usual, search="ctc_greedy")(AUDIO, rate=16000)
    with pytest.raises(UserError, match="choose from ctc_greedy, joint"):
        Recognizer.from_pretrained(own, allow_import=True, search="rescore")
    with pytest.raises(UserError, match="loading the model would run its code"):
        Recognizer.from_pretrained(own)


def test_a_model_that_can_only_be_trained_is_rejected(tmp_path: Path) -> None:
    folder = model(tmp_path / "exp", TOKENS, model="own_model:OnlyTrained", model_conf={})
    with pytest.raises(UserError, match="class OnlyTrained of this model can be trained but not decoded"):
        Recognizer.from_pretrained(folder, allow_import=True)
