"""The recipe's options: ESPnet1's names and defaults, and the names of the files that they imply."""

from __future__ import annotations

from pathlib import Path

import pytest

from tympan.errors import UserError
from tympan.recipe.options import RecipeOptions
from tympan.recipe.recipe import parse_options


def options(*arguments: str, corpus: str = "aishell") -> RecipeOptions:
    return parse_options([corpus, *arguments])


def test_defaults_are_the_recipes() -> None:
    found = options()
    expected = {
        "backend": "pytorch", "stage": "0", "stop_stage": "100", "ngpu": 1, "debugmode": 1, "dumpdir": "dump", "N": 0,
        "verbose": 0, "resume": "", "do_delta": False, "preprocess_config": "", "train_config": "conf/train.yaml",
        "lm_config": "conf/lm.yaml", "decode_config": "conf/decode.yaml", "lm_resume": "", "lmtag": "", "ngramtag": "",
        "n_gram": 4, "recog_model": "", "n_average": 10, "tag": "",
    }  # fmt: skip
    assert {name: getattr(found, name) for name in expected} == expected
    assert found.train_set("train") == "train_sp"
    assert found.speed_factors == [0.9, 1.0, 1.1]


def test_negative_stage_and_equals_sign() -> None:
    assert options("--stage", "-1").stage == "-1"
    assert options("--stage=-1", "--stop_stage=2").stop_stage == "2"


def test_options_for_the_commands_inside() -> None:
    found = options("--asr_args", "--max_epoch 2 --seed 3", "--inference_args=--nbest=2", "--ngpu", "0")
    assert (found.asr_args, found.inference_args, found.ngpu) == ("--max_epoch 2 --seed 3", "--nbest=2", 0)


def test_names_of_what_is_made() -> None:
    found = options("--preprocess_config", "conf/specaug.yaml")
    assert found.asr_dir("train_sp") == Path("exp/train_sp_pytorch_train_specaug")
    assert found.dump_dir("dev") == Path("dump/dev/deltafalse")
    assert found.lm_dir == Path("exp/train_rnnlm_pytorch_lm")
    assert found.ngram_file == Path("exp/train_ngram/4gram.arpa")
    assert found.decode_dir("train_sp", "test").name == "decode_test_model.last10.avg_decode_lm_4gram"
    assert options("--tag", "mine").asr_dir("train_sp") == Path("exp/train_sp_pytorch_mine")
    assert options("--n_average", "0").model_file == "model.best.pth"
    assert options("--n_average", "0", "--recog_model", "model.acc.best").model_file == "valid.acc.best.pth"
    assert options("--n_average", "0", "--recog_model", "model.loss.best").model_file == "valid.loss.best.pth"
    assert options("--n_average", "0", "--recog_model", "7epoch").model_file == "7epoch.pth"


def test_a_corpus_has_its_own_defaults_and_what_is_typed_wins(tmp_path: Path) -> None:
    found = options(corpus="an4")
    assert (found.feats_type, found.token_type, found.lm_config) == ("raw", "phn", "")
    assert found.train_config == "conf/train.yaml"
    (tmp_path / "recipe.yaml").write_text("token_type: word\nfeats_type: fbank\n")
    found = options("--config", str(tmp_path / "recipe.yaml"), "--feats_type", "fbank_pitch", corpus="an4")
    assert (found.feats_type, found.token_type, found.lm_config) == ("fbank_pitch", "word", "")
    assert options().token_type == "char"


def test_help_shows_the_defaults_of_the_corpus(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options("--help", corpus="an4")
    assert "token type; phn: phones of a lexicon (Tympan) [phn]" in capsys.readouterr().out


def test_misspelt_corpus() -> None:
    with pytest.raises(UserError, match=r"there is no corpus 'aishel'\. Did you mean 'aishell'\? Known: aishell, "):
        options(corpus="aishel")


def test_misspelt_option() -> None:
    with pytest.raises(UserError, match="Did you mean"):
        options("--train_confg", "x")
