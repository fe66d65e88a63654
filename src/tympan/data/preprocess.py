"""What happens to an utterance between its files and its batch: augmentation of speech, cleaning and tokens of text."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from tympan.data.augment import WaveformAugmentation
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
        nonsplit_symbol: Sequence[str] | None = None,
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
            nonsplit_symbols=nonsplit_symbol,
        )

    def __call__(self, text: str) -> np.ndarray:
        tokens = self.tokenizer.text2tokens(self.cleaner(text))
        return np.array(self.vocabulary.tokens2ids(tokens), dtype=np.int64)


class Preprocessor:
    """The `preprocess` of a training set (with `augmentation`) or a validation set (without). Can be pickled."""

    def __init__(
        self,
        *,
        text: TextPreprocessor | None = None,
        augmentation: WaveformAugmentation | None = None,
        speech_volume_normalize: float | None = None,
        force_single_channel: bool = False,
        min_sample_size: int = -1,
        audio_pad_value: float = 0.0,
        speech_name: str = "speech",
        text_name: str = "text",
    ) -> None:
        self.text = text
        self.augmentation = augmentation
        self.speech_volume_normalize = speech_volume_normalize
        self.force_single_channel = force_single_channel
        self.min_sample_size = min_sample_size
        self.audio_pad_value = audio_pad_value
        self.speech_name = speech_name
        self.text_name = text_name

    def __call__(self, utterance_id: str, values: Mapping[str, Value], epoch: int) -> dict[str, Value]:
        out = dict(values)
        speech, text = out.get(self.speech_name), out.get(self.text_name)
        if isinstance(speech, np.ndarray):
            out[self.speech_name] = self._prepare_speech(speech, utterance_id, epoch)
        if isinstance(text, str) and self.text is not None:
            out[self.text_name] = self.text(text)
        return out

    def _prepare_speech(self, speech: np.ndarray, utterance_id: str, epoch: int) -> np.ndarray:
        if self.force_single_channel and speech.ndim == 2:
            speech = speech[:, 0]
        if self.augmentation is not None:
            speech = self.augmentation(speech, utterance_id, epoch=epoch)
        if self.speech_volume_normalize is not None:
            loudest = np.abs(speech).max(initial=0.0)
            # ESPnet2 divides by zero where a recording is digital silence.
            speech = speech * (self.speech_volume_normalize / loudest) if loudest > 0 else speech
        if len(speech) < self.min_sample_size:
            padding = [(0, self.min_sample_size - len(speech)), *([(0, 0)] * (speech.ndim - 1))]
            speech = np.pad(speech, padding, constant_values=self.audio_pad_value)
        return speech
