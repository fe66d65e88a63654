"""Tokens of a text model, from its tokenizer.json."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from tympan.config.text import TextConfig
from tympan.errors import UserError
from tympan.text.codec import build_codec

tokenizers = pytest.importorskip("tokenizers", reason="the extra 'hf' is not installed")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tokenizer with sentencepiece's marks, as mBART and T5 have it."""
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "▁hello", "▁wor", "ld", "▁", "h"]
    model = tokenizers.models.Unigram([(token, -float(number)) for number, token in enumerate(tokens)], unk_id=3)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    tokenizer.decoder = tokenizers.decoders.Metaspace()
    tokenizer.add_special_tokens(tokens[:4])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokens.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    return tmp_path


def test_text_to_ids_and_back(folder: Path) -> None:
    config = TextConfig(token_list=str(folder / "tokens.txt"), token_type="hugging_face", bpemodel=str(folder))
    codec = pickle.loads(pickle.dumps(build_codec(config)))
    assert codec.tokenize("hello world") == ["▁hello", "▁wor", "ld"]
    assert codec("hello world").tolist() == [4, 5, 6]
    assert codec.text_of(["<s>", "▁hello", "▁wor", "ld", "</s>"]) == "hello world"
    assert codec.separator == " "


def test_the_token_list_may_be_left_out(folder: Path) -> None:
    """The tokens are those of ESPnet2's hugging_face_export_vocabulary: by id, without the added ones."""
    tokens = (folder / "tokens.txt").read_text(encoding="utf-8").split()
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(["<added>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    codec = build_codec(TextConfig(token_list=None, token_type="hugging_face", bpemodel=str(folder)))
    assert list(codec.vocabulary.tokens) == tokens
    assert codec("hello world").tolist() == [4, 5, 6]


def test_missing_file_says_what_to_fetch(tmp_path: Path) -> None:
    config = TextConfig(token_list=["<unk>", "a"], token_type="hugging_face", bpemodel=str(tmp_path))
    with pytest.raises(UserError, match=r"needs --bpemodel FOLDER with tokenizer.json"):
        build_codec(config)
