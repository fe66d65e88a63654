"""Convert text to token ids and back as configured. Used by training, decoding, alignment and perplexity."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tympan.config.text import TextConfig
from tympan.errors import UserError
from tympan.text.cleaner import TextCleaner
from tympan.text.phonemes import PACKAGES
from tympan.text.tokenizer import Tokenizer, build_tokenizer
from tympan.text.vocabulary import Vocabulary, read_token_list
from tympan.text.whisper import EOT, WHISPER_TYPES, find_vocabulary, read_token_strings, require_vocabulary

MODEL_TYPES = ("bpe", "hugging_face", *WHISPER_TYPES)
"""The token types whose tokenizer is a file, `bpemodel`."""

WORD_START = "▁"
"""The character that sentencepiece uses for a space at the start of a piece."""

Find = Callable[[str], str | os.PathLike[str]]
"""Maps a path in a configuration to the actual file, since the files of a model that was moved are elsewhere."""


@dataclass(frozen=True)
class TextCodec:
    """Cleans and tokenizes a transcript, and converts tokens to text. Can be pickled."""

    vocabulary: Vocabulary
    tokenizer: Tokenizer
    cleaner: TextCleaner

    def __call__(self, text: str) -> np.ndarray:
        """Return the token ids (length,) of a transcript."""
        return np.array(self.vocabulary.tokens2ids(self.tokenize(text)), dtype=np.int64)

    def tokenize(self, text: str) -> list[str]:
        return self.tokenizer.text2tokens(self.cleaner(text))

    def text_of(self, tokens: Iterable[str]) -> str:
        return self.tokenizer.tokens2text(tokens)

    @property
    def separator(self) -> str:
        """The separator between the texts of two segments: a space if the language is written with spaces."""
        space = self.tokenizer.space_symbol
        if space is None or space in self.vocabulary:
            return " "
        return " " if any(WORD_START in token for token in self.vocabulary.tokens) else ""


def build_codec(config: TextConfig, *, find: Find = str, source: str = "token_list") -> TextCodec:
    """Build vocabulary, tokenizer and cleaner from a configuration. `source` is its name in error messages."""
    symbols = config.non_linguistic_symbols
    g2p = config.g2p
    is_file = config.bpemodel is not None and config.bpemodel not in WHISPER_TYPES
    return TextCodec(
        vocabulary=read_vocabulary(config, find=find, source=source),
        tokenizer=build_tokenizer(
            config.token_type,
            bpemodel=find(config.bpemodel) if is_file and config.token_type in MODEL_TYPES else None,  # type: ignore[arg-type]
            non_linguistic_symbols=find(symbols) if isinstance(symbols, str) else symbols,
            space_symbol=config.space_symbol,
            delimiter=config.delimiter,
            g2p_type=g2p if g2p is None or g2p in PACKAGES or config.token_type != "phn" else str(find(g2p)),
            nonsplit_symbols=config.nonsplit_symbol,
        ),
        cleaner=TextCleaner(config.cleaner),
    )


def read_vocabulary(
    config: TextConfig, *, find: Find = str, source: str = "token_list", converts_text: bool = True
) -> Vocabulary:
    """Read the tokens of `token_list`: a file, or the list itself, as in a saved configuration.

    Whisper's tokens cover every text, so its list has no token for unknown ones. Without a list, its vocabulary file
    has the tokens, or the tokenizer.json of `hugging_face`. A list that converts no text needs no unknown token.
    """
    if config.token_type in WHISPER_TYPES:
        return _whisper_vocabulary(config, find=find, source=source, unk_symbol=EOT if converts_text else None)
    unk_symbol = config.unk_symbol if converts_text else None
    if config.token_type == "hugging_face" and config.token_list is None and config.bpemodel is not None:
        from tympan.text.hugging_face import read_tokens

        return Vocabulary(read_tokens(Path(find(config.bpemodel))), unk_symbol=unk_symbol, source=source)
    if config.token_list is None:
        raise UserError(
            f"{source} is missing, and --token_type {config.token_type} needs one: give --token_list FILE with one "
            "token per line, such as the one that `tympan tokenize_text --write_vocabulary true` writes"
        )
    if isinstance(config.token_list, str):
        return read_token_list(find(config.token_list), unk_symbol=unk_symbol)
    return Vocabulary(config.token_list, unk_symbol=unk_symbol, source=source)


def _whisper_vocabulary(config: TextConfig, *, find: Find, source: str, unk_symbol: str | None) -> Vocabulary:
    try:
        if isinstance(config.token_list, str):
            return read_token_list(find(config.token_list), unk_symbol=unk_symbol)
        if config.token_list is not None:
            return Vocabulary(config.token_list, unk_symbol=unk_symbol, source=source)
    except UserError as error:
        raise UserError(
            f"--token_type {config.token_type} needs no --token_list, or one of Whisper's: {error}"
        ) from None
    is_file = config.bpemodel is not None and config.bpemodel not in WHISPER_TYPES
    path = find_vocabulary(Path(find(config.bpemodel)) if is_file else None, config.token_type)  # type: ignore[arg-type]
    tokens = read_token_strings(require_vocabulary(path, config.token_type))
    return Vocabulary(tokens, unk_symbol=unk_symbol, source=source)
