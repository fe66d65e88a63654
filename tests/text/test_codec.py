"""Conversion of text to ids and back, as configured."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from tympan.config.text import TextConfig
from tympan.errors import UserError
from tympan.text.codec import build_codec

TOKENS = ["<blank>", "<oov>", "a", "b", "<gap>", "<sos/eos>"]


def test_own_symbols_are_used_in_both_directions() -> None:
    config = TextConfig(token_list=TOKENS, token_type="char", unk_symbol="<oov>", space_symbol="<gap>")
    codec = pickle.loads(pickle.dumps(build_codec(config)))
    assert codec("a bx").tolist() == [2, 4, 3, 1]
    assert codec.text_of(["a", "<gap>", "b"]) == "a b"
    assert codec.separator == " "


def test_the_cleaner_comes_before_the_tokenizer() -> None:
    codec = build_codec(TextConfig(token_list=TOKENS, token_type="char", unk_symbol="<oov>", cleaner="lowercase"))
    assert codec("AB").tolist() == [2, 3]


@pytest.mark.parametrize(
    ("token_type", "tokens", "separator"),
    [
        ("char", ["<blank>", "<unk>", "天", "<sos/eos>"], ""),
        ("char", ["<blank>", "<unk>", "a", "<space>", "<sos/eos>"], " "),
        ("word", ["<blank>", "<unk>", "hello", "<sos/eos>"], " "),
    ],
)
def test_segments_are_joined_as_the_language_is_written(token_type: str, tokens: list[str], separator: str) -> None:
    assert build_codec(TextConfig(token_list=tokens, token_type=token_type)).separator == separator


def test_files_are_looked_for_where_the_model_is(tmp_path: Path) -> None:
    (tmp_path / "tokens.txt").write_text("<blank>\n<unk>\na\n<sos/eos>\n", encoding="utf-8")
    (tmp_path / "symbols.txt").write_text("<n>\n", encoding="utf-8")
    config = TextConfig(token_list="old/tokens.txt", token_type="char", non_linguistic_symbols="old/symbols.txt")
    codec = build_codec(config, find=lambda path: tmp_path / Path(path).name)
    assert codec.tokenize("a<n>") == ["a", "<n>"]


def test_a_missing_token_list_is_a_mistake() -> None:
    with pytest.raises(UserError, match="--token_list FILE"):
        build_codec(TextConfig(token_list=None, token_type="char"))
