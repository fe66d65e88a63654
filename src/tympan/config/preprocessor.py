"""The keys of `preprocessor_conf`: what happens to an utterance between the file and the batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PreprocessorConf:
    """ESPnet2's names and defaults. `fs` 0 takes the recordings' own rate."""

    unk_symbol: str = "<unk>"
    space_symbol: str = "<space>"
    delimiter: str | None = None
    force_single_channel: bool = False
    speech_name: str = "speech"
    text_name: str = "text"
    fs: int = 0
    nonsplit_symbol: list[str] | None = None
    data_aug_effects: list[Any] | None = None
    data_aug_num: tuple[int, int] = (1, 1)
    data_aug_prob: float = 0.0
    min_sample_size: int = -1
    audio_pad_value: float = 0.0
    whisper_language: str | None = None
    whisper_task: str | None = None
    text_length_warning_thres: int = 500
    """Training begins with a warning if transcripts have more tokens than this; 0 or less never warns."""
