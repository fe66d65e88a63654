"""The model of a training configuration: which family it is, and its builder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from torch import nn

from tympan.models.hybrid import build_hybrid
from tympan.models.lm.build import build_lm

if TYPE_CHECKING:
    from tympan.config.asr import AsrTrainConfig

__all__ = ["FAMILIES", "build_asr_model", "build_lm"]


class Builder(Protocol):
    def __call__(self, config: AsrTrainConfig, *, reads_statistics: bool) -> nn.Module: ...


FAMILIES: Mapping[str, Builder] = {}
"""Builders of models that have a decoder of their own kind, by the option `decoder`. All others are hybrid."""


def build_asr_model(config: AsrTrainConfig, *, reads_statistics: bool = True) -> nn.Module:
    """The model of `config`, a `tympan.models.speech_model.SpeechModel` unless it is of a class of the user's own.

    `reads_statistics` false leaves `global_mvn` empty, for weights that bring mean and deviation along.
    """
    build = FAMILIES.get(config.decoder or "", build_hybrid)
    return build(config, reads_statistics=reads_statistics)
