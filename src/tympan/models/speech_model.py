"""The interface of a speech model for training and decoding, independent of its family.

The hybrid CTC/attention model is one implementation (`tympan.models.hybrid`). Another family is a module with a class
like this, a builder next to it, a line in `tympan.models.build.FAMILIES`, and the searches that it names.

Optional abilities are Protocols too: `HasDecoder`, `HasPrompt`, `ForSpeakers` and `LimitsInput` here, those that
training uses in `tympan.models.abilities`, and `Packs` (`packs_batches`: padding costs the encoder nothing on a CPU) in
`tympan.models.parts`. Ask for them with `isinstance`, when something is built and not in every step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from tympan.models.abilities import CollectsFeatures, ExpectsTokens, NeedsFrames, PlotsAttention
from tympan.models.encoder.output import EncoderOutput
from tympan.models.loss import Loss
from tympan.models.parts import Packs, Part, Recomputes, StepDecoder


@runtime_checkable
class SpeechModel(Part, Protocol):
    """From speech (batch, samples[, channels]) or features (batch, frames, size) to a loss and to an encoding."""

    token_list: tuple[str, ...]
    vocab_size: int
    blank_id: int
    """CTC's or the transducer's blank."""
    sos: int
    eos: int
    searches: tuple[str, ...]
    """Names of the searches that can decode this family, the usual one first. `tympan.decode.search` describes them."""

    def forward(self, *args: Any, **tensors: Any) -> Loss:
        """The loss of a batch: speech, speech_lengths, text, text_lengths, and augment_seed while training."""
        ...

    def encode(self, speech: Tensor, speech_lengths: Tensor, /) -> EncoderOutput:
        """Features and encoder. The output for an utterance does not depend on the others of the batch."""
        ...

    def output_lengths(self, lengths: Tensor, /) -> Tensor:
        """Number of encoder frames for a number of samples (or feature frames), without running the model."""
        ...

    @property
    def has_ctc(self) -> bool:
        """Whether `ctc_log_posteriors` is available: CTC searches, times and confidences need it."""
        ...

    def ctc_log_posteriors(self, out: Tensor, /) -> Tensor:
        """Encoder output (..., time, size) -> log posteriors (..., time, V) in float32 or float64."""
        ...

    def set_precision(self, dtype: torch.dtype, /) -> None:
        """Convert the weights. The parts that compute and normalize features stay in at least float32."""
        ...


@runtime_checkable
class LimitsInput(Protocol):
    """A model whose encoder may have a limited number of positions."""

    @property
    def max_samples(self) -> int | None:
        """Longer audio is cut; None: no limit."""
        ...


@runtime_checkable
class HasPrompt(Protocol):
    """A model whose decoder's text begins with given tokens, such as language and task."""

    prompt: tuple[int, ...]


@runtime_checkable
class ForSpeakers(Protocol):
    """A model that recognizes several speakers of a recording.

    `encode` gives `num_speakers` outputs for each utterance, which are consecutive rows. Their order has no meaning.
    """

    num_speakers: int


@runtime_checkable
class HasDecoder(Protocol):
    """A model with an attention decoder, which a search runs token by token."""

    @property
    def step_decoder(self) -> StepDecoder | None:
        """None if this model was trained without one."""
        ...


if TYPE_CHECKING:
    # Models are chosen by name, so only this assignment lets the type checker verify that they conform.
    from tympan.models.hybrid import HybridModel
    from tympan.models.multi_speaker import MultiSpeakerModel
    from tympan.models.st import StModel
    from tympan.models.transducer import TransducerModel

    _MODELS: tuple[type[SpeechModel], ...] = (HybridModel, StModel, TransducerModel)
    _WITH_DECODER: tuple[type[HasDecoder], ...] = (HybridModel, StModel)
    _LIMITED: tuple[type[LimitsInput], ...] = (HybridModel,)
    _FOR_SPEAKERS: tuple[type[ForSpeakers], ...] = (MultiSpeakerModel,)
    _PROMPTED: tuple[type[HasPrompt], ...] = (HybridModel,)
    _PLOTTED: tuple[type[PlotsAttention], ...] = (HybridModel, StModel, TransducerModel)
    _COLLECTED: tuple[type[CollectsFeatures], ...] = (HybridModel, StModel, TransducerModel)
    _ALIGNED: tuple[type[NeedsFrames], ...] = (HybridModel, StModel, TransducerModel)
    _EMITTING: tuple[type[ExpectsTokens], ...] = (TransducerModel,)
    _PACKED: tuple[type[Packs], ...] = (HybridModel, StModel, TransducerModel)
    _RECOMPUTED: tuple[type[Recomputes], ...] = (HybridModel, StModel, TransducerModel)
