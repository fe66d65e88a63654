"""Models from a training configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from tympan.config import choices
from tympan.errors import UserError
from tympan.models.asr import AsrModel
from tympan.models.initialize import initialize
from tympan.models.lm.build import build_lm

if TYPE_CHECKING:
    from tympan.config.asr import AsrTrainConfig

__all__ = ["build_asr_model", "build_lm"]


@dataclass(frozen=True)
class _Inputs:
    frontend: nn.Module | None
    specaug: nn.Module | None
    normalize: nn.Module | None
    preencoder: nn.Module | None
    size: int
    """What the encoder takes."""


def build_asr_model(config: AsrTrainConfig, *, reads_statistics: bool = True) -> AsrModel:
    """The model of `config`, initialised as `config.init` says.

    `reads_statistics` false leaves `global_mvn` empty, for weights that bring mean and deviation along.
    """
    inputs = _build_inputs(config, reads_statistics)
    encoder = choices.ENCODERS.build(config.encoder, config.encoder_conf, input_size=inputs.size)
    assert isinstance(config.token_list, list), "the caller reads a file of tokens"
    sizes = {"vocab_size": len(config.token_list), "encoder_output_size": encoder.output_size}
    decoder = None
    if config.decoder is not None:
        decoder = choices.DECODERS.build(config.decoder, config.decoder_conf, **sizes)
    model: AsrModel = choices.ASR_MODELS.build(
        config.model,
        config.model_conf,
        token_list=config.token_list,
        frontend=inputs.frontend,
        specaug=inputs.specaug,
        normalize=inputs.normalize,
        preencoder=inputs.preencoder,
        encoder=encoder,
        decoder=decoder,
        ctc=choices.CTCS.build("ctc", config.ctc_conf, **sizes),
    )
    initialize(model, config.init)
    return model


def _build_inputs(config: AsrTrainConfig, reads_statistics: bool) -> _Inputs:
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
    return _Inputs(frontend, specaug, normalize, preencoder, size)


def _build_normalize(name: str, conf: dict[str, Any], size: int, reads_statistics: bool) -> nn.Module:
    if name != "global_mvn":
        return choices.NORMALIZERS.build(name, conf)  # type: ignore[no-any-return]
    if not reads_statistics:
        conf = {**conf, "stats_file": None}
    elif conf.get("stats_file") is None:
        raise UserError("normalize: global_mvn needs normalize_conf stats_file, which --collect_stats true makes")
    return choices.NORMALIZERS.build(name, conf, input_size=size)  # type: ignore[no-any-return]
