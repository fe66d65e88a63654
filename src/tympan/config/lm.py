"""The options of `lm_train`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tympan.config.choices import LM_MODELS, LMS
from tympan.config.model import MODEL, InitOptions
from tympan.config.option import choice, conf_of
from tympan.config.resolve import Conflict
from tympan.config.text import TextConfig, TextOptions, check_text, text_config
from tympan.config.train import TrainConfig


@dataclass(frozen=True, kw_only=True)
class LmTrainConfig(TextOptions, InitOptions, TrainConfig):
    """The configuration of a language model's training run; every `*_conf` is complete."""

    lm: str = choice(LMS, "seq_rnn", help="language model", group=MODEL)
    lm_conf: dict[str, Any] = conf_of("lm", help="parameters of --lm", group=MODEL)
    model: str = choice(LM_MODELS, "lm", help="model class that computes the loss of the language model", group=MODEL)
    model_conf: dict[str, Any] = conf_of("model", help="parameters of --model", group=MODEL)

    @property
    def text(self) -> TextConfig:
        return text_config(self)

    @staticmethod
    def conflicts(values: Mapping[str, Any]) -> Iterator[Conflict]:
        yield from TrainConfig.conflicts(values)
        yield from check_text(values)
