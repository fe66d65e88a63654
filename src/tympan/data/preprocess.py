"""What happens to an utterance between its files and its batch: augmentation of speech, cleaning and tokens of text."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from tympan.data.readers import Value
from tympan.text.cleaner import TextCleaner
from tympan.text.tokenizer import Symbols, build_tokenizer
from tympan.text.vocabulary import Vocabulary, read_token_list


class TextPreprocessor:
    """Cleans, tokenizes and numbers a transcript."""

    def __init__(
        self,
        token_list: str | os.PathLike[str] | Iterable[str] | Vocabulary,
        *,
        token_type: str,
        bpemodel: str | os.PathLike[str] | None = None,
        cleaner: str | Sequence[str] | None = None,
        g2p: str | None = None,
        non_linguistic_symbols: Symbols = None,
        unk_symbol: str = "<unk>",
        space_symbol: str = "<space>",
        delimiter: str | None = None,
    ) -> None:
        if isinstance(token_list, (str, os.PathLike)):
            token_list = read_token_list(token_list, unk_symbol=unk_symbol)
        elif not isinstance(token_list, Vocabulary):
            token_list = Vocabulary(token_list, unk_symbol=unk_symbol)
        self.vocabulary = token_list
        self.cleaner = TextCleaner(cleaner)
        self.tokenizer = build_tokenizer(
            token_type,
            bpemodel=bpemodel,
            non_linguistic_symbols=non_linguistic_symbols,
            space_symbol=space_symbol,
            delimiter=delimiter,
            g2p_type=g2p,
        )

    def __call__(self, text: str) -> np.ndarray:
        tokens = self.tokenizer.text2tokens(self.cleaner(text))
        return np.array(self.vocabulary.tokens2ids(tokens), dtype=np.int64)


class Preprocessor:
    """The `preprocess` of a training or validation set. Can be pickled."""

    def __init__(
        self,
        *,
        text: TextPreprocessor | None = None,
        speech_name: str = "speech",
        text_name: str = "text",
    ) -> None:
        self.text = text
        self.speech_name = speech_name
        self.text_name = text_name

    def __call__(self, utterance_id: str, values: Mapping[str, Value], epoch: int) -> dict[str, Value]:
        out = dict(values)
        text = out.get(self.text_name)
        if isinstance(text, str) and self.text is not None:
            out[self.text_name] = self.text(text)
        return out
