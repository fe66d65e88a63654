"""The interfaces of a model's parts: frontends, encoders, decoders and language models.

All of them are Protocols: a class conforms by having these members, and inherits from `torch.nn.Module` only. Optional
abilities (`ConditionsOnCtc`, `Packs`, `Recomputes`, `KeepsAttention`, `Streams`) are checked with `isinstance`, when a
model is built rather than in every step: such a check costs microseconds, and `torch.compile` can't trace it.

Since Python 3.12 `isinstance` does not see parameters, buffers and submodules (`nn.Module.__getattr__`). So
the members are methods, properties and plain attributes. It checks only names; the type checker compares signatures.

Shapes: features (batch, time, size); lengths (batch,). In a search: U utterances, B beams, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from tympan.models.ctc import Ctc
from tympan.models.encoder.output import EncoderOutput
from tympan.nn.beam_state import BeamState


class Part(Protocol):
    """The members that every part has as a `torch.nn.Module`."""

    training: bool

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]: ...


@runtime_checkable
class Frontend(Part, Protocol):
    """Features from audio: `--frontend`."""

    output_size: int
    """Values per frame."""

    def forward(self, speech: Tensor, lengths: Tensor, /) -> tuple[Tensor, Tensor]:
        """Speech (batch, samples[, channels]) -> features, zero beyond their lengths, and the lengths in frames."""
        ...

    def __call__(self, speech: Tensor, lengths: Tensor, /) -> tuple[Tensor, Tensor]: ...

    def output_lengths(self, lengths: Tensor, /) -> Tensor:
        """Number of frames for a number of samples, without computing the features."""
        ...


class Augmenter(Part, Protocol):
    """Random changes of the features during training: `--specaug`."""

    def forward(self, features: Tensor, lengths: Tensor, seeds: Tensor | None = None, /) -> Tensor:
        """Changed features of the same shape. Random choices depend on the seeds (batch,), or on torch's generator."""
        ...

    def __call__(self, features: Tensor, lengths: Tensor, seeds: Tensor | None = None, /) -> Tensor: ...


class Normalizer(Part, Protocol):
    """Normalization of the features: `--normalize`."""

    def forward(self, features: Tensor, lengths: Tensor, /) -> Tensor:
        """Normalized features of the same shape, zero beyond the lengths."""
        ...

    def __call__(self, features: Tensor, lengths: Tensor, /) -> Tensor: ...


@runtime_checkable
class Preencoder(Part, Protocol):
    """A transformation of every frame before the encoder: `--preencoder`."""

    output_size: int

    def forward(self, features: Tensor, /) -> Tensor:
        """Features of the same length with `output_size` values per frame."""
        ...

    def __call__(self, features: Tensor, /) -> Tensor: ...


@runtime_checkable
class Encoder(Part, Protocol):
    """From features to the frames that CTC and the decoder use: `--encoder`.

    - `__init__` takes `input_size`, the number of values per frame, which the builder knows. Its other parameters are
      the keys and defaults of `encoder_conf`. It has no `**kwargs`.
    - The output of an utterance must not depend on the padding: it is the same by itself and in any batch.
    - Utterances of length 0 can occur and have 0 frames. Output frames beyond the lengths may have any value.
    - The caller chooses device and precision: create new tensors with the device and dtype of an input.

    A complete encoder, which stacks pairs of frames. In `my_package/enc.py` it is used with
    `--encoder my_package.enc:MyEncoder --encoder_conf output_size=128`:

        import torch
        from torch import Tensor, nn
        from tympan.models.encoder.output import EncoderOutput

        class MyEncoder(nn.Module):
            def __init__(self, *, input_size: int, output_size: int = 256) -> None:
                super().__init__()
                self.output_size = output_size
                self.linear = nn.Linear(2 * input_size, output_size)

            def forward(self, features: Tensor, lengths: Tensor) -> EncoderOutput:
                even = nn.functional.pad(features, (0, 0, 0, features.size(1) % 2))
                pairs = even.reshape(even.size(0), even.size(1) // 2, 2 * even.size(2))
                return EncoderOutput(torch.relu(self.linear(pairs)), self.output_lengths(lengths))

            def output_lengths(self, lengths: Tensor) -> Tensor:
                return torch.div(lengths + 1, 2, rounding_mode="floor")
    """

    output_size: int
    """Values per frame of the output."""

    def forward(self, features: Tensor, lengths: Tensor, /) -> EncoderOutput:
        """Features (batch, time, input size), zero beyond the lengths, or tokens (batch, time) of `input_layer: embed`.

        The output's lengths are those of `output_lengths`.
        """
        ...

    def __call__(self, features: Tensor, lengths: Tensor, /) -> EncoderOutput: ...

    def output_lengths(self, lengths: Tensor, /) -> Tensor:
        """Number of output frames for a number of input frames, without running the encoder."""
        ...


@runtime_checkable
class Postencoder(Part, Protocol):
    """A transformation of the encoder's output: `--postencoder`. `__init__` takes `input_size`."""

    output_size: int

    def forward(self, x: Tensor, lengths: Tensor, /) -> tuple[Tensor, Tensor]:
        """(batch, frames, size) and lengths -> the same of the output."""
        ...

    def __call__(self, x: Tensor, lengths: Tensor, /) -> tuple[Tensor, Tensor]: ...

    def output_lengths(self, lengths: Tensor, /) -> Tensor:
        """Number of output frames for a number of encoder frames."""
        ...


@runtime_checkable
class TakesAudio(Protocol):
    """An encoder that takes audio. The model has no other frontend, and no normalization."""

    max_samples: int | None
    """Longer audio is cut; None: no limit."""

    def own_inputs(self) -> tuple[Frontend, Augmenter | None]:
        """The frontend and SpecAugment that belong to it."""
        ...


@runtime_checkable
class LimitsTokens(Protocol):
    """A decoder with a limited number of positions."""

    max_tokens: int


class StepDecoder(Protocol):
    """The interface of a decoder for a search: one step per token, for many hypotheses at once."""

    def start(self, memory: Tensor, memory_lengths: Tensor, beams: int, /) -> BeamState:
        """The state before the first token. Memory (U, frames, size) is the encoder's output."""
        ...

    def step(self, tokens: Tensor, state: Any, /) -> tuple[Tensor, BeamState]:
        """The last token of every hypothesis (U, B), sos at first -> log probabilities (U, B, V) of the next, state.

        `state` is what `start` or the `step` before returned, perhaps reordered by the search.
        """
        ...


@runtime_checkable
class Decoder(StepDecoder, Part, Protocol):
    """From the encoder's output and the tokens so far to the next token: `--decoder`. Used in training and search.

    `__init__` takes `vocab_size` and `encoder_output_size`, which the builder knows.
    """

    def forward(self, memory: Tensor, memory_lengths: Tensor, tokens: Tensor, lengths: Tensor, /) -> Tensor:
        """Logits (batch, length, V) of the token after each of `tokens` (batch, length), which begin with sos."""
        ...

    def __call__(self, memory: Tensor, memory_lengths: Tensor, tokens: Tensor, lengths: Tensor, /) -> Tensor: ...


@runtime_checkable
class NextTokenModel(Part, Protocol):
    """The network of a language model: `--lm`. It is trained on whole sentences and searched step by step.

    `__init__` takes `vocab_size`, which the builder knows.
    """

    def forward(self, tokens: Tensor, /) -> Tensor:
        """Logits (batch, length, V) of the token after each of `tokens` (batch, length), which begin with sos."""
        ...

    def __call__(self, tokens: Tensor, /) -> Tensor: ...

    def start(self, utterances: int, beams: int, device: torch.device, dtype: torch.dtype, /) -> BeamState:
        """The state before the first token."""
        ...

    def step(self, tokens: Tensor, state: Any, /) -> tuple[Tensor, BeamState]:
        """As in `StepDecoder`."""
        ...


@runtime_checkable
class ConditionsOnCtc(Protocol):
    """An encoder whose layers can use the CTC posteriors of earlier layers (Nozaki and Komatsu 2021).

    It is called with the CTC as a third argument when `uses_ctc` is true.
    """

    interctc_use_conditioning: bool

    @property
    def uses_ctc(self) -> bool: ...

    def add_conditioning(self, vocab_size: int, /) -> None:
        """Create the layer that projects the posteriors. Call it once, before training or loading weights."""
        ...

    def __call__(self, features: Tensor, lengths: Tensor, ctc: Ctc | None, /) -> EncoderOutput: ...


@runtime_checkable
class Streams(Protocol):
    """An encoder that can encode an utterance piece by piece, with the output that the whole utterance has."""

    def start_stream(self) -> Any:
        """The state before the first frame. UserError for options that need the whole utterance."""
        ...

    def encode_chunk(self, features: Tensor, state: Any, /, *, is_last: bool) -> tuple[Tensor, Any]:
        """The next features (1, time, input size) -> the output frames (1, time, size) that are final by now, and the
        next state. Both may be empty. A state is never changed: an older one stays valid.
        """
        ...


@runtime_checkable
class Packs(Protocol):
    """An encoder that can process concatenated utterances on a CPU, so that padding costs nothing."""

    @property
    def packs_batches(self) -> bool:
        """Whether its options allow this."""
        ...


@runtime_checkable
class Recomputes(Protocol):
    """A part that can recompute activations in the backward pass, to save memory."""

    def set_grad_checkpointing(self, is_on: bool, /) -> None: ...


@runtime_checkable
class SeparatesSpeakers(Protocol):
    """An encoder with several outputs for each utterance, one per speaker, which are consecutive rows of its output.

    The outputs of an utterance have the same length.
    """

    num_inf: int
    """Number of outputs per utterance."""


@runtime_checkable
class KeepsAttention(Protocol):
    """An attention layer that keeps its weights for plots when `keep_weights` is true."""

    keep_weights: bool
    weights: Tensor | None
    """The weights of the last forward pass: (batch, [heads,] queries, keys)."""


if TYPE_CHECKING:
    # Registered classes are chosen by name, so only these assignments let the type checker verify that they conform.
    from tympan.features.frontend import DefaultFrontend
    from tympan.features.mvn import GlobalMvn, UtteranceMvn
    from tympan.features.specaug import SpecAug
    from tympan.features.windows import SlidingWindow
    from tympan.models.decoder.convolution import ConvolutionDecoder
    from tympan.models.decoder.linear import LinearDecoder
    from tympan.models.decoder.rnn import RnnDecoder
    from tympan.models.decoder.s4 import S4Decoder
    from tympan.models.decoder.transformer import TransformerDecoder
    from tympan.models.encoder.blocks import BlockEncoder
    from tympan.models.encoder.contextual_block import ContextualBlockEncoder
    from tympan.models.encoder.multi_speaker import MultiSpeakerTransformerEncoder
    from tympan.models.encoder.rnn import RnnEncoder
    from tympan.models.encoder.vgg_rnn import VggRnnEncoder
    from tympan.models.lm.seq_rnn import SequentialRnnLm
    from tympan.models.lm.transformer import TransformerLm
    from tympan.models.postencoder import LengthAdaptor
    from tympan.models.preencoder import LinearProjection
    from tympan.models.pretrained.audio_encoders import TorchAudioHubertEncoder, Wav2Vec2Encoder
    from tympan.models.pretrained.beats import BeatsEncoder
    from tympan.models.pretrained.cnn import Wav2VecCnnFrontend
    from tympan.models.pretrained.espnet_ssl import EspnetSslFrontend
    from tympan.models.pretrained.fused import FusedFrontends
    from tympan.models.pretrained.huggingface import HuggingFaceFrontend
    from tympan.models.pretrained.s3prl import S3prlFrontend
    from tympan.models.pretrained.seq2seq import HuggingFaceDecoder
    from tympan.models.pretrained.text_encoder import HuggingFacePostencoder
    from tympan.models.pretrained.whisper_decoder import WhisperDecoder
    from tympan.models.pretrained.whisper_encoder import WhisperEncoder, WhisperFrontend
    from tympan.models.pretrained.whisper_layers import WhisperAttention
    from tympan.models.sinc import LightweightSincConvs
    from tympan.nn.attention import MultiHeadedAttention
    from tympan.nn.rnn_attention import DotAttention, MultiHeadAttention, NoAttention, RnnAttention

    _FRONTENDS: tuple[type[Frontend], ...] = (
        DefaultFrontend,
        SlidingWindow,
        S3prlFrontend,
        HuggingFaceFrontend,
        FusedFrontends,
        WhisperFrontend,
        Wav2VecCnnFrontend,
        EspnetSslFrontend,
    )
    _AUGMENTERS: tuple[type[Augmenter], ...] = (SpecAug,)
    _NORMALIZERS: tuple[type[Normalizer], ...] = (GlobalMvn, UtteranceMvn)
    _PREENCODERS: tuple[type[Preencoder], ...] = (LinearProjection, LightweightSincConvs)
    _ENCODERS: tuple[type[Encoder], ...] = (
        BlockEncoder,
        MultiSpeakerTransformerEncoder,
        ContextualBlockEncoder,
        RnnEncoder,
        VggRnnEncoder,
        WhisperEncoder,
        Wav2Vec2Encoder,
        TorchAudioHubertEncoder,
        BeatsEncoder,
    )
    _POSTENCODERS: tuple[type[Postencoder], ...] = (LengthAdaptor, HuggingFacePostencoder)
    _DECODERS: tuple[type[Decoder], ...] = (
        TransformerDecoder,
        ConvolutionDecoder,
        RnnDecoder,
        WhisperDecoder,
        HuggingFaceDecoder,
        LinearDecoder,
        S4Decoder,
    )
    _LANGUAGE_MODELS: tuple[type[NextTokenModel], ...] = (SequentialRnnLm, TransformerLm)
    _CONDITIONED: tuple[type[ConditionsOnCtc], ...] = (BlockEncoder,)
    _PACKED: tuple[type[Packs], ...] = (BlockEncoder,)
    _STREAMING: tuple[type[Streams], ...] = (ContextualBlockEncoder,)
    _SEPARATING: tuple[type[SeparatesSpeakers], ...] = (MultiSpeakerTransformerEncoder,)
    _RECOMPUTED: tuple[type[Recomputes], ...] = (
        BlockEncoder,
        MultiSpeakerTransformerEncoder,
        ContextualBlockEncoder,
        TransformerDecoder,
        ConvolutionDecoder,
        S4Decoder,
        WhisperEncoder,
        WhisperDecoder,
    )
    _FROM_AUDIO: tuple[type[TakesAudio], ...] = (WhisperEncoder, Wav2Vec2Encoder, TorchAudioHubertEncoder, BeatsEncoder)
    _LIMITED: tuple[type[LimitsTokens], ...] = (WhisperDecoder,)
    _ATTENTION: tuple[type[KeepsAttention], ...] = (
        MultiHeadedAttention,
        RnnAttention,
        NoAttention,
        DotAttention,
        MultiHeadAttention,
        WhisperAttention,
    )
