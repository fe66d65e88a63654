"""Preprocessing of an utterance: augmentation of speech, tokenization of text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from tympan.data.augment import WaveformAugmentation
from tympan.data.readers import Value


@dataclass(frozen=True)
class SpeechPreprocessor:
    """Processes the samples of one recording: (time,) or (time, channels)."""

    augmentation: WaveformAugmentation | None = None
    volume_normalize: float | None = None
    force_single_channel: bool = False
    min_sample_size: int = -1
    audio_pad_value: float = 0.0

    def __call__(self, speech: np.ndarray, utterance_id: str, *, epoch: int) -> np.ndarray:
        if self.force_single_channel and speech.ndim == 2:
            speech = speech[:, 0]
        if self.augmentation is not None:
            speech = self.augmentation(speech, utterance_id, epoch=epoch)
        if self.volume_normalize is not None:
            loudest = np.abs(speech).max(initial=0.0)
            # ESPnet2 divides by zero if a recording is digital silence.
            speech = speech * (self.volume_normalize / loudest) if loudest > 0 else speech
        if len(speech) < self.min_sample_size:
            padding = [(0, self.min_sample_size - len(speech)), *([(0, 0)] * (speech.ndim - 1))]
            speech = np.pad(speech, padding, constant_values=self.audio_pad_value)
        return speech


@dataclass(frozen=True)
class Preprocessor:
    """The `preprocess` of a training set (with augmentation) or a validation set (without). Can be pickled."""

    texts: Mapping[str, Callable[[str], np.ndarray]] = field(default_factory=dict)
    """Data name -> function from a transcript to token ids, usually a `tympan.text.codec.TextCodec`."""
    speech: SpeechPreprocessor | None = None
    speech_name: str = "speech"

    @property
    def stretch(self) -> float:
        """Factor by which speech may become longer than in its file."""
        augmentation = None if self.speech is None else self.speech.augmentation
        return 1.0 if augmentation is None else augmentation.stretch

    def __call__(self, utterance_id: str, values: Mapping[str, Value], epoch: int) -> dict[str, Value]:
        out = dict(values)
        speech = out.get(self.speech_name)
        if self.speech is not None and isinstance(speech, np.ndarray):
            out[self.speech_name] = self.speech(speech, utterance_id, epoch=epoch)
        for name, encode in self.texts.items():
            text = out.get(name)
            if isinstance(text, str):
                out[name] = encode(text)
        return out
