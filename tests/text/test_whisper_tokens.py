"""Whisper's tokens: byte-level BPE from both kinds of vocabulary files, special tokens, the prompt."""

from __future__ import annotations

import base64
import json
import pickle
from pathlib import Path

import pytest

from tympan.config.text import TextConfig
from tympan.errors import UserError
from tympan.text import whisper
from tympan.text.codec import build_codec
from tympan.text.whisper import (
    WhisperTokenizer,
    find_vocabulary,
    prompt_tokens,
    read_token_strings,
)

pytest.importorskip("tokenizers", reason="the extra 'hf' is not installed")

MERGED = [b"he", b"ll", b"llo", b"hello", b" w", b" wo", b"\xe4\xbd"]


def write_tiktoken(path: Path) -> Path:
    """All bytes, and a few merges."""
    tokens = [bytes([byte]) for byte in range(256)] + MERGED
    lines = [f"{base64.b64encode(token).decode()} {rank}" for rank, token in enumerate(tokens)]
    path.write_text("\n".join([*lines, f"= {len(tokens)}"]) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def vocabulary(tmp_path: Path) -> Path:
    return write_tiktoken(tmp_path / "multilingual.tiktoken")


def test_text_is_split_by_the_merges_and_joined_again(vocabulary: Path) -> None:
    tokenizer = WhisperTokenizer(vocabulary, "whisper_multilingual")
    assert tokenizer.text2tokens("hello worl") == ["hello", " wo", "r", "l"]
    text = "hello 你好, ÿ"
    tokens = pickle.loads(pickle.dumps(tokenizer)).text2tokens(text)
    assert tokenizer.tokens2text(["<|en|>", *tokens, "<|endoftext|>"]) == text


def test_both_kinds_of_files_are_the_same_vocabulary(vocabulary: Path, tmp_path: Path) -> None:
    tokenizer = whisper.read_tokenizer(vocabulary)
    added = read_token_strings(vocabulary)[len(MERGED) + 257 :]
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = [
        {"id": len(MERGED) + 257 + n, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}
        for n, token in enumerate(added)
    ]  # fmt: skip
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    assert read_token_strings(path) == read_token_strings(vocabulary)
    ours = WhisperTokenizer(path, "whisper_multilingual")
    assert ours.text2tokens("hello wow") == ["hello", " wo", "w"]


def test_special_tokens_follow_the_words(vocabulary: Path) -> None:
    tokens = read_token_strings(vocabulary)
    first = len(MERGED) + 257
    # 99 languages, 8 other special tokens and 1501 times
    assert len(tokens) == first + 1608
    assert tokens[first : first + 3] == ["<|endoftext|>", "<|startoftranscript|>", "<|en|>"]
    assert tokens[-1502:-1499] == ["<|notimestamps|>", "<|0.00|>", "<|0.02|>"]
    assert tokens[-1] == "<|30.00|>"
    assert len(read_token_strings(vocabulary, vocab_size=first + 1609)) == first + 1609


def test_token_list_may_be_left_out(vocabulary: Path) -> None:
    config = TextConfig(token_list=None, token_type="whisper_multilingual", bpemodel=str(vocabulary))
    codec = build_codec(config)
    ids = codec("hello")
    assert codec.vocabulary.ids2tokens(ids.tolist()) == ["hello"]
    assert codec.separator == " "


def test_prompt_of_the_configuration() -> None:
    assert prompt_tokens("whisper_multilingual", "zh", None) == ("<|zh|>", "<|transcribe|>", "<|notimestamps|>")
    assert prompt_tokens("whisper_multilingual", "jpn", "translate")[:2] == ("<|ja|>", "<|translate|>")
    assert prompt_tokens("whisper_en", None, None) == ("<|notimestamps|>",)
    assert prompt_tokens("bpe", "zh", None) == ()
    with pytest.raises(UserError, match="is not a language of Whisper"):
        prompt_tokens("whisper_multilingual", "klingon", None)
    with pytest.raises(UserError, match="whisper_task: must be one of"):
        prompt_tokens("whisper_multilingual", "en", "sing")


def test_missing_vocabulary_says_what_to_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    tokenizer = WhisperTokenizer(
        find_vocabulary("whisper_multilingual", "whisper_multilingual"), "whisper_multilingual"
    )
    assert tokenizer.tokens2text(["hel", "lo", " wo"]) == "hello wo", "no file is needed for that"
    with pytest.raises(UserError, match=r"multilingual.tiktoken of https://github.com/openai/whisper"):
        tokenizer.text2tokens("hello")


def test_damaged_vocabularies_are_rejected(tmp_path: Path) -> None:
    broken = tmp_path / "multilingual.tiktoken"
    broken.write_text("hello world\n", encoding="utf-8")
    with pytest.raises(UserError, match="lines must be a token in base64 and a number"):
        read_token_strings(broken)
    broken = tmp_path / "tokenizer.json"
    broken.write_text("[]", encoding="utf-8")
    with pytest.raises(UserError, match=r"is not a tokenizer.json"):
        read_token_strings(broken)
    with pytest.raises(UserError, match="no such file"):
        find_vocabulary(tmp_path / "missing", "whisper_en")
