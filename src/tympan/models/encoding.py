"""What the model families share: the parts up to the encoder, and CTC on its output.

Shapes: speech (batch, samples[, channels]) or features (batch, frames, size).
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from tympan.errors import UserError
from tympan.models.ctc import Ctc
from tympan.models.encoder.output import EncoderOutput
from tympan.models.encoder.packed import is_packable
from tympan.models.inputs import prepare_features, set_precision
from tympan.models.parts import (
    Augmenter,
    ConditionsOnCtc,
    Encoder,
    Frontend,
    Normalizer,
    Preencoder,
    Recomputes,
)


class EncodingModel(nn.Module):
    """The methods that need only these parts. A family sets the parts in its `__init__`, and adds its loss."""

    frontend: Frontend | None
    specaug: Augmenter | None
    normalize: Normalizer | None
    preencoder: Preencoder | None
    encoder: Encoder
    ctc: Ctc | None
    extract_feats_in_collect_stats: bool
    is_conditioned: bool = False

    def condition_encoder(self, vocab_size: int) -> None:
        """Create the layer for an encoder that uses the CTC posteriors of earlier layers, if its options say so."""
        encoder = self.encoder
        if isinstance(encoder, ConditionsOnCtc) and encoder.uses_ctc:
            self.is_conditioned = True
            if encoder.interctc_use_conditioning:
                encoder.add_conditioning(vocab_size)

    def require_ctc(self, interctc_weight: float) -> None:
        """UserError if the model has no CTC, but its encoder layers use it."""
        if self.ctc is None and (interctc_weight > 0 or self.is_conditioned):
            layers = "encoder_conf interctc_use_conditioning (or ctc_trim)"
            user = layers if interctc_weight == 0 else "model_conf interctc_weight"
            raise UserError(f"{user} needs CTC: set model_conf ctc_weight above 0")

    def encode(self, speech: Tensor, speech_lengths: Tensor, *, augment_seed: Tensor | None = None) -> EncoderOutput:
        """Features and encoder. SpecAugment only in training, from `augment_seed` (batch,) or torch's generator."""
        features, lengths = prepare_features(self, speech, speech_lengths, augment_seed=augment_seed)
        if self.is_conditioned:
            # Checked once, in __init__: isinstance of a Protocol is slow, and torch.compile can't trace it.
            return cast(ConditionsOnCtc, self.encoder)(features, lengths, self.ctc)
        return self.encoder(features, lengths)

    def output_lengths(self, lengths: Tensor) -> Tensor:
        """Number of encoder frames for a number of samples (or feature frames), without running the model."""
        if self.frontend is not None:
            lengths = self.frontend.output_lengths(lengths)
        return self.encoder.output_lengths(lengths)

    @property
    def has_ctc(self) -> bool:
        return self.ctc is not None

    def frames_needed(self, tokens: Tensor, repeats: Tensor) -> dict[str, Tensor]:
        """Least encoder frames (batch,) of each loss: for CTC the tokens, and a blank between equal neighbours."""
        return {"CTC": tokens + repeats} if self.has_ctc else {}

    def ctc_log_posteriors(self, out: Tensor) -> Tensor:
        """Encoder output (..., time, size) -> (..., time, V), in at least float32."""
        assert self.ctc is not None
        return self.ctc.log_softmax(out)

    @property
    def packs_batches(self) -> bool:
        """Whether padding costs the encoder nothing on a CPU, so that a batch may mix utterances of any length."""
        return is_packable(self.encoder)

    def feature_parts(self) -> list[nn.Module]:
        """The parts that compute and normalize features, in at least float32."""
        return [part for part in (self.frontend, self.normalize) if isinstance(part, nn.Module)]

    def set_precision(self, dtype: torch.dtype) -> None:
        """Convert the weights, except those of `feature_parts`."""
        set_precision(self, dtype, features=self.feature_parts())

    def collect_feats(self, speech: Tensor, speech_lengths: Tensor, **others: Tensor | None) -> dict[str, Tensor]:
        """Features before normalization, for `--collect_stats`. The texts in `others` are not used."""
        if not self.extract_feats_in_collect_stats or self.frontend is None:
            return {"feats": speech, "feats_lengths": speech_lengths}
        features, lengths = self.frontend(speech, speech_lengths)
        return {"feats": features, "feats_lengths": lengths}

    def set_grad_checkpointing(self, is_on: bool) -> None:
        """Recompute activations of the blocks in the backward pass, to save memory."""
        for part in self.children():
            if isinstance(part, Recomputes):
                part.set_grad_checkpointing(is_on)
