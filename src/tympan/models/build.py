"""Build the model of a training configuration: find its kind, family and builder."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from torch import nn

from tympan.config.choices import TRANSDUCER_DECODERS
from tympan.config.model import MULTI_SPEAKER, SpeechToTextConfig
from tympan.config.signature import import_class
from tympan.models.hybrid import build_hybrid
from tympan.models.lm.build import build_lm
from tympan.models.multi_speaker import build_multi_speaker
from tympan.models.transducer import build_transducer

if TYPE_CHECKING:
    from tympan.config.asr import AsrTrainConfig

__all__ = ["FAMILIES", "SPEECH_KINDS", "build_asr_model", "build_lm", "speech_kind"]


class Builder(Protocol):
    """Builds an untrained model. `reads_statistics` false leaves `global_mvn` empty, to be filled by loaded weights."""

    def __call__(self, config: Any, *, reads_statistics: bool = True) -> nn.Module: ...


FAMILIES: Mapping[str, Builder] = dict.fromkeys(TRANSDUCER_DECODERS, build_transducer)
"""Builders of models with a special decoder, by the option `decoder`. All others are hybrid."""


def build_asr_model(config: AsrTrainConfig, *, reads_statistics: bool = True) -> nn.Module:
    """The model of `config`, a `tympan.models.speech_model.SpeechModel` unless its class is the user's own.

    `reads_statistics` false leaves `global_mvn` empty; the weights then contain mean and deviation.
    """
    build = build_multi_speaker if config.model == MULTI_SPEAKER else FAMILIES.get(config.decoder or "", build_hybrid)
    return build(config, reads_statistics=reads_statistics)


@dataclass(frozen=True)
class SpeechKind:
    """A kind of configuration whose model turns speech into text, so that it can be decoded."""

    config: str
    """`module:Class` of the configuration."""
    builder: str
    """`module:function` of its builder."""
    marker: str | None = None
    """An option that only configurations of this kind have; None for recognition, the default kind."""

    @property
    def config_class(self) -> type[SpeechToTextConfig]:
        found: type[SpeechToTextConfig] = import_class(self.config)
        return found

    @property
    def build(self) -> Builder:
        module, _, name = self.builder.partition(":")
        found: Builder = getattr(importlib.import_module(module), name)
        return found


SPEECH_KINDS = (
    SpeechKind("tympan.config.st:StTrainConfig", "tympan.models.st_build:build_st_model", marker="src_token_list"),
    SpeechKind("tympan.config.asr:AsrTrainConfig", "tympan.models.build:build_asr_model"),
)


def speech_kind(values: Mapping[str, Any]) -> SpeechKind:
    """The kind of a saved configuration, determined from its options."""
    return next(kind for kind in SPEECH_KINDS if kind.marker is None or kind.marker in values)
