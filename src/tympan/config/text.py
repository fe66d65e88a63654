"""The options that determine how text is tokenized, and how to read them from a configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tympan.config.option import option
from tympan.config.resolve import Conflict

TEXT = "text"

TokenType = Literal["bpe", "char", "word", "phn", "whisper_en", "whisper_multilingual", "hugging_face"]


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """The options of a training command with one kind of text."""

    token_list: str | list[str] | None = option(
        None, help="list of tokens, or a file with one per line; required for training", group=TEXT
    )
    use_preprocessor: bool = option(
        True, help="tokenize text and augment audio; false: the text files contain token ids", group=TEXT
    )
    token_type: TokenType = option("bpe", help="token type", group=TEXT)
    bpemodel: str | None = option(
        None,
        help="file of the tokenizer: a sentencepiece model for token_type bpe, multilingual.tiktoken or tokenizer.json "
        "for Whisper's tokens, tokenizer.json for hugging_face",
        group=TEXT,
    )
    non_linguistic_symbols: str | list[str] | None = option(
        None, help="symbols such as <noise> that are never split, or a file with one per line; null: none", group=TEXT
    )
    cleaner: str | list[str] | None = option(
        None, help="text cleaners to apply before tokenizing, such as lowercase; null: none", group=TEXT
    )
    g2p: str | None = option(
        None, help="for token_type phn: a grapheme-to-phoneme package, or a pronunciation lexicon file", group=TEXT
    )


@dataclass(frozen=True, kw_only=True)
class TextConfig:
    """Everything that determines how text is converted to token ids; passed to `tympan.text.codec.build_codec`."""

    token_list: str | list[str] | None
    token_type: str
    bpemodel: str | None = None
    non_linguistic_symbols: str | list[str] | None = None
    cleaner: str | list[str] | None = None
    g2p: str | None = None
    unk_symbol: str = "<unk>"
    space_symbol: str = "<space>"
    delimiter: str | None = None
    nonsplit_symbol: list[str] | None = None
    whisper_language: str | None = None
    whisper_task: str | None = None


def text_config(options: TextOptions, preprocessor_conf: Mapping[str, Any] | None = None) -> TextConfig:
    """Read them from a task's options. The symbols are keys of `preprocessor_conf`, if the task has one."""
    symbols = ("unk_symbol", "space_symbol", "delimiter", "nonsplit_symbol", "whisper_language", "whisper_task")
    given = dict(preprocessor_conf or {})
    given["nonsplit_symbol"] = given.get("nonsplit_symbol") or given.get("speaker_change_symbol")
    return TextConfig(
        token_list=options.token_list,
        token_type=options.token_type,
        bpemodel=options.bpemodel,
        non_linguistic_symbols=options.non_linguistic_symbols,
        cleaner=options.cleaner,
        g2p=options.g2p,
        **{name: given[name] for name in symbols if name in given},
    )


def check_text(values: Mapping[str, Any]) -> Iterator[Conflict]:
    """Find conflicts between the text options."""
    reads_text = any(kind == "text" for _, _, kind in values["train_data_path_and_name_and_type"])
    needs_model = values["use_preprocessor"] and values["token_type"] == "bpe" and values["bpemodel"] is None
    if reads_text and needs_model:
        yield Conflict(("token_type", "bpemodel"), "bpe needs --bpemodel; or use --token_type char")
