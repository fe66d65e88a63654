"""The keys of `preprocessor_conf`: processing of an utterance before it goes into a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from tympan.config.range import Range


@dataclass(frozen=True)
class PreprocessorConf:
    """ESPnet2's names and defaults. With `fs` 0 the recordings keep their own sample rate."""

    unk_symbol: str = "<unk>"
    space_symbol: str = "<space>"
    delimiter: str | None = None
    force_single_channel: bool = False
    speech_name: str = "speech"
    text_name: str = "text"
    fs: Annotated[int, Range(0, 1_000_000)] = 0
    nonsplit_symbol: list[str] | None = None
    data_aug_effects: list[Any] | None = None
    data_aug_num: Annotated[tuple[int, int], Range(0, 1_000)] = (1, 1)
    data_aug_prob: Annotated[float, Range(0, 1)] = 0.0
    min_sample_size: Annotated[int, Range(-1)] = -1
    audio_pad_value: Annotated[float, Range(-1_000_000, 1_000_000)] = 0.0
    whisper_language: str | None = None
    whisper_task: str | None = None
    text_length_warning_thres: Annotated[int, Range(0, 1_000_000_000)] = 500
    """Training starts with a warning if a transcript has more tokens than this; 0 or less: no warning."""


@dataclass(frozen=True)
class MultiPreprocessorConf:
    """`preprocessor: multi`, for the texts of several speakers. `text_name` are their data names.

    `speaker_change_symbol` are tokens that are never split, for transcripts of all speakers in one text.
    """

    unk_symbol: str = "<unk>"
    space_symbol: str = "<space>"
    delimiter: str | None = None
    speech_name: str = "speech"
    text_name: str | tuple[str, ...] = ("text",)
    fs: Annotated[int, Range(0, 1_000_000)] = 0
    speaker_change_symbol: list[str] | None = None
    data_aug_effects: list[Any] | None = None
    data_aug_num: Annotated[tuple[int, int], Range(0, 1_000)] = (1, 1)
    data_aug_prob: Annotated[float, Range(0, 1)] = 0.0
    whisper_language: str | None = None
    whisper_task: str | None = None
