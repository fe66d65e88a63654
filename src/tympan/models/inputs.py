"""The parts of a model before its encoder, shared by all families: built from a training configuration, and run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from tympan.config import choices
from tympan.errors import UserError
from tympan.models.encoder.own import build_encoder
from tympan.models.parts import Augmenter, Encoder, Frontend, Normalizer, Preencoder, TakesAudio
from tympan.nn.full_precision import full_precision
from tympan.nn.masks import length_mask

if TYPE_CHECKING:
    from tympan.config.model import SpeechModelOptions


@dataclass(frozen=True)
class Inputs:
    frontend: Frontend | None
    specaug: Augmenter | None
    normalize: Normalizer | None
    preencoder: Preencoder | None
    size: int
    """Number of values per frame of the encoder input."""


def build_inputs(config: SpeechModelOptions, *, reads_statistics: bool = True) -> Inputs:
    """`reads_statistics` false leaves `global_mvn` empty; the weights then contain mean and deviation."""
    if config.encoder in choices.AUDIO_ENCODERS:
        return Inputs(None, None, None, None, 1)
    frontend = None
    if config.input_size is None:
        if config.frontend is None:
            raise UserError("frontend is null, so --input_size is required: the number of values per feature frame")
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


def with_encoder(config: SpeechModelOptions, inputs: Inputs) -> tuple[Inputs, Encoder]:
    """The inputs and the encoder. An encoder that takes audio brings its own inputs."""
    encoder = build_encoder(config.encoder, config.encoder_conf, input_size=inputs.size)
    if isinstance(encoder, TakesAudio):
        frontend, specaug = encoder.own_inputs()
        inputs = replace(inputs, frontend=frontend, specaug=specaug)
    return inputs, encoder


class HasInputs(Protocol):
    """A model with these parts before its encoder."""

    @property
    def training(self) -> bool: ...

    @property
    def frontend(self) -> Frontend | None: ...

    @property
    def specaug(self) -> Augmenter | None: ...

    @property
    def normalize(self) -> Normalizer | None: ...

    @property
    def preencoder(self) -> Preencoder | None: ...

    @property
    def encoder(self) -> Encoder: ...


def prepare_features(
    model: HasInputs, speech: Tensor, lengths: Tensor, *, augment_seed: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The encoder input. SpecAugment only in training: seeded by `augment_seed` (batch,), or torch's generator."""
    if model.frontend is None and speech.dim() == 2 and speech.is_floating_point():
        raise UserError(
            "with --input_size the model has no frontend and expects features (time, dim), but the data is audio. "
            "Remove --input_size, or give features"
        )
    with full_precision(speech):
        features = speech
        if model.frontend is not None:
            features, lengths = model.frontend(speech, lengths)
        if model.specaug is not None and model.training:
            features = model.specaug(features, lengths, augment_seed)
        if model.normalize is not None:
            features = model.normalize(features, lengths)
    # An encoder whose layers are all laid out for oneDNN has no parameters left, and computes in float32
    weight = next(model.encoder.parameters(), None)
    # Audio (batch, samples) is not rounded: an encoder that takes audio computes features from it
    if features.is_floating_point() and features.dim() > 2 and weight is not None:
        features = features.to(weight.dtype)
    if model.preencoder is not None:
        features = model.preencoder(features)
        # A bias is not zero beyond the lengths, and an encoder may begin with a wide convolution
        features = features.masked_fill(~length_mask(lengths, features.size(1)).unsqueeze(-1), 0.0)
    return features, lengths


def set_precision(model: nn.Module, dtype: torch.dtype, *, features: Iterable[object]) -> None:
    """Convert the weights of a model; the parts in `features` stay in at least float32."""
    model.to(dtype=dtype)
    for part in features:
        if isinstance(part, nn.Module) and dtype in (torch.float16, torch.bfloat16):
            part.float()


def _build_normalize(name: str, conf: dict[str, Any], size: int, reads_statistics: bool) -> Normalizer:
    sizes = {}
    if name == "global_mvn":
        sizes = {"input_size": size}
        if not reads_statistics:
            conf = {**conf, "stats_file": None}
        elif conf.get("stats_file") is None:
            raise UserError(
                "normalize: global_mvn needs normalize_conf stats_file, a file that --collect_stats true creates"
            )
    normalize: Normalizer = choices.NORMALIZERS.build(name, conf, **sizes)
    return normalize
