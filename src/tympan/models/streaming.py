"""Encode audio that arrives in pieces: frontend, normalization, preencoder and encoder of a trained model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tympan.errors import UserError
from tympan.features.frame_stream import FrameStream
from tympan.features.frontend import DefaultFrontend
from tympan.features.mvn import GlobalMvn
from tympan.models.encoding import EncodingModel
from tympan.models.parts import Normalizer, Preencoder, Streams
from tympan.models.preencoder import LinearProjection
from tympan.models.speech_model import SpeechModel


class EncoderStream:
    """The encoder's output for one recording in pieces. It equals that of the whole recording up to rounding."""

    def __init__(self, model: SpeechModel) -> None:
        """UserError if a part of the model needs the whole recording."""
        if not isinstance(model, EncodingModel) or model.is_conditioned or not isinstance(model.encoder, Streams):
            raise UserError(
                "this model can't recognize audio in pieces, because its encoder needs the whole recording. These "
                "encoders can: contextual_block_conformer, contextual_block_transformer"
            )
        _check(model.normalize, model.preencoder)
        self._frames = FrameStream(_frontend(model))
        self._model = model
        self._encoder: Streams = model.encoder
        self._state: Any = self._encoder.start_stream()
        self._dtype = next(iter(model.encoder.parameters()), torch.empty(0)).dtype

    def accept(self, samples: Tensor, *, is_last: bool) -> Tensor:
        """The next samples (time,) -> the output frames (1, time, size) that are final by now."""
        features = self._frames.accept(samples, is_last=is_last)
        if self._model.normalize is not None:
            features = self._model.normalize(features, torch.tensor([features.size(1)], device=features.device))
        features = features.to(self._dtype)
        if self._model.preencoder is not None:
            features = self._model.preencoder(features)
        out, self._state = self._encoder.encode_chunk(features, self._state, is_last=is_last)
        return out


def _check(normalize: Normalizer | None, preencoder: Preencoder | None) -> None:
    if normalize is not None and not isinstance(normalize, GlobalMvn):
        raise UserError(
            "this model can't recognize audio in pieces: normalize: utterance_mvn needs the whole recording. Train "
            "with normalize: global_mvn, or null"
        )
    if preencoder is not None and not isinstance(preencoder, LinearProjection):
        raise UserError("this model can't recognize audio in pieces: of the preencoders, only linear supports it")


def _frontend(model: EncodingModel) -> DefaultFrontend:
    if model.frontend is None:
        raise UserError("this model can't recognize audio in pieces, because it was trained on stored features")
    if not isinstance(model.frontend, DefaultFrontend):
        raise UserError("this model can't recognize audio in pieces: of the frontends, only default supports it")
    return model.frontend
