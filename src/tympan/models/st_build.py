"""Build the speech translation model of a training configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tympan.config import choices
from tympan.errors import UserError
from tympan.models.encoder.own import build_encoder
from tympan.models.initialize import initialize
from tympan.models.inputs import build_inputs, with_encoder
from tympan.models.parts import Decoder, Encoder
from tympan.models.st import StModel

if TYPE_CHECKING:
    from tympan.config.st import StTrainConfig


def build_st_model(config: StTrainConfig, *, reads_statistics: bool = True) -> StModel:
    """Build the model of a configuration of `st_train`, with the initialization of `config.init`.

    `reads_statistics` false leaves `global_mvn` empty; the weights then contain mean and deviation.
    """
    _check_supported(config)
    inputs, encoder = with_encoder(config, build_inputs(config, reads_statistics=reads_statistics))
    hier_encoder, size = None, encoder.output_size
    if config.hier_encoder is not None:
        hier_encoder = build_encoder(
            config.hier_encoder, config.hier_encoder_conf, input_size=size, option="hier_encoder"
        )
        size = hier_encoder.output_size
    tokens, src_tokens = config.token_list, config.src_token_list
    assert isinstance(tokens, list), "the caller reads a file of tokens"
    assert not isinstance(src_tokens, str), "the caller reads a file of tokens"
    vocab_size = len(tokens)
    target = {"vocab_size": vocab_size, "encoder_output_size": size}
    source = {"vocab_size": len(src_tokens or ()), "encoder_output_size": encoder.output_size}
    model: StModel = choices.ST_MODELS.build(
        "espnet",
        config.model_conf,
        token_list=tokens,
        src_token_list=src_tokens,
        frontend=inputs.frontend,
        specaug=inputs.specaug,
        normalize=inputs.normalize,
        preencoder=inputs.preencoder,
        encoder=encoder,
        hier_encoder=hier_encoder,
        extra_mt_encoder=_build_text_encoder(config, vocab_size),
        decoder=_build_decoder(config, "decoder", target),
        extra_asr_decoder=_build_decoder(config, "extra_asr_decoder", source) if src_tokens else None,
        extra_mt_decoder=_build_decoder(config, "extra_mt_decoder", target),
        ctc=choices.CTCS.build("ctc", config.ctc_conf, **source) if src_tokens else None,
        st_ctc=choices.CTCS.build("ctc", config.ctc_conf, **target),
    )
    initialize(model, config.init)
    return model


def _check_supported(config: StTrainConfig) -> None:
    """Reject intermediate CTC, which is not defined for two languages, and modules after the encoder."""
    if config.postencoder is not None:
        raise UserError(f"postencoder {config.postencoder} is for speech recognition (asr_train) only; use null")
    confs = {
        "encoder_conf": config.encoder_conf,
        "hier_encoder_conf": config.hier_encoder_conf,
        "extra_mt_encoder_conf": config.extra_mt_encoder_conf,
    }
    for name, conf in confs.items():
        if conf.get("interctc_layer_idx") or conf.get("interctc_use_conditioning"):
            raise UserError(
                f"{name} interctc_*: the translation model does not support intermediate CTC; remove these keys"
            )


def _build_decoder(config: StTrainConfig, option: str, sizes: Mapping[str, int]) -> Decoder | None:
    name, conf = getattr(config, option), getattr(config, f"{option}_conf")
    return None if name is None else choices.DECODERS.for_option(option).build(name, conf, **sizes)


def _build_text_encoder(config: StTrainConfig, vocab_size: int) -> Encoder | None:
    """For source text: as many embeddings as the target has tokens, as in ESPnet2."""
    if config.extra_mt_encoder is None:
        return None
    conf = config.extra_mt_encoder_conf
    if conf.get("input_layer") != "embed":
        raise UserError("the input of extra_mt_encoder is tokens; set extra_mt_encoder_conf input_layer=embed")
    encoder: Encoder = build_encoder(config.extra_mt_encoder, conf, input_size=vocab_size, option="extra_mt_encoder")
    return encoder
