"""The parts of a model in front of its encoder, from a training configuration: the same for every family."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tympan.config import choices
from tympan.errors import UserError
from tympan.models.parts import Augmenter, Frontend, Normalizer, Preencoder

if TYPE_CHECKING:
    from tympan.config.model import SpeechModelOptions


@dataclass(frozen=True)
class Inputs:
    frontend: Frontend | None
    specaug: Augmenter | None
    normalize: Normalizer | None
    preencoder: Preencoder | None
    size: int
    """Values per frame that the encoder takes."""


def build_inputs(config: SpeechModelOptions, *, reads_statistics: bool = True) -> Inputs:
    """`reads_statistics` false leaves `global_mvn` empty, for weights that bring mean and deviation along."""
    frontend = None
    if config.input_size is None:
        if config.frontend is None:
            raise UserError("frontend is null, so --input_size must say how many values a frame of the features has")
        frontend = choices.FRONTENDS.build(config.frontend, config.frontend_conf)
        size = frontend.output_size
    else:
        size = config.input_size
    specaug = None if config.specaug is None else choices.SPECAUGS.build(config.specaug, config.specaug_conf)
    normalize = None
    if config.normalize is not None:
        normalize = _build_normalize(config.normalize, config.normalize_conf, size, reads_statistics)
    preencoder = None
    if config.preencoder is not None:
        preencoder = choices.PREENCODERS.build(config.preencoder, config.preencoder_conf, input_size=size)
        size = preencoder.output_size
    return Inputs(frontend, specaug, normalize, preencoder, size)


def _build_normalize(name: str, conf: dict[str, Any], size: int, reads_statistics: bool) -> Normalizer:
    sizes = {}
    if name == "global_mvn":
        sizes = {"input_size": size}
        if not reads_statistics:
            conf = {**conf, "stats_file": None}
        elif conf.get("stats_file") is None:
            raise UserError("normalize: global_mvn needs normalize_conf stats_file, which --collect_stats true makes")
    normalize: Normalizer = choices.NORMALIZERS.build(name, conf, **sizes)
    return normalize
