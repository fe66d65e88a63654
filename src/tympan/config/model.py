"""The options of models with speech input, shared by recognition and translation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from tympan.config.choices import (
    AUDIO_ENCODERS,
    CTCS,
    DECODERS,
    ENCODERS,
    FRONTENDS,
    NORMALIZERS,
    POSTENCODERS,
    PREENCODERS,
    PREPROCESSORS,
    SPECAUGS,
)
from tympan.config.effects import check_effects
from tympan.config.option import choice, conf_for, conf_of, not_yet, option
from tympan.config.resolve import Conflict
from tympan.config.text import TEXT, TextConfig, TextOptions, text_config
from tympan.config.train import TrainConfig

MODEL = "model"
MULTI_SPEAKER, MULTI_SPEAKER_ENCODER = "pit_espnet", "transformer_multispkr"
"""The model for recordings of several speakers, and its encoder."""
AUGMENT = "augmentation"

Initialization = Literal[
    "pytorch", "chainer", "xavier_uniform", "xavier_normal", "kaiming_uniform", "kaiming_normal", "normal", "uniform"
]


@dataclass(frozen=True, kw_only=True)
class InitOptions:
    """Initialization of a model's weights."""

    init: Initialization | None = option(
        None,
        help="weight initialization; uniform: between -0.1 and 0.1 (Tympan); null: the default of each layer",
        group=MODEL,
    )


@dataclass(frozen=True, kw_only=True)
class SpeechModelOptions:
    """The parts of a model from audio to encoder and decoder."""

    input_size: int | None = option(
        None,
        help="dimension of the stored features; null: the input is audio and needs a frontend",
        group=MODEL,
        least=1,
    )
    ctc_conf: dict[str, Any] = conf_for(CTCS, help="parameters of the CTC layer", group=MODEL)
    frontend: str | None = choice(
        FRONTENDS,
        "default",
        help="module that computes features from audio; null: the input is stored features",
        group=MODEL,
    )
    frontend_conf: dict[str, Any] = conf_of("frontend", help="parameters of --frontend", group=MODEL)
    specaug: str | None = choice(SPECAUGS, None, help="SpecAugment on the features; null: none", group=MODEL)
    specaug_conf: dict[str, Any] = conf_of("specaug", help="parameters of --specaug", group=MODEL)
    normalize: str | None = choice(NORMALIZERS, "utterance_mvn", help="feature normalization; null: none", group=MODEL)
    normalize_conf: dict[str, Any] = conf_of("normalize", help="parameters of --normalize", group=MODEL)
    preencoder: str | None = choice(PREENCODERS, None, help="module before the encoder; null: none", group=MODEL)
    preencoder_conf: dict[str, Any] = conf_of("preencoder", help="parameters of --preencoder", group=MODEL)
    encoder: str | None = choice(
        ENCODERS, "rnn", help="encoder; null: none, the features are used as they are", group=MODEL
    )
    encoder_conf: dict[str, Any] = conf_of("encoder", help="parameters of --encoder", group=MODEL)
    postencoder: str | None = choice(POSTENCODERS, None, help="module after the encoder; null: none", group=MODEL)
    postencoder_conf: dict[str, Any] = conf_of("postencoder", help="parameters of --postencoder", group=MODEL)
    decoder: str | None = choice(DECODERS, None, help="attention decoder; null: CTC only", group=MODEL)
    decoder_conf: dict[str, Any] = conf_of("decoder", help="parameters of --decoder", group=MODEL)

    @property
    def takes_audio(self) -> bool:
        """Whether the model's input is audio, not stored features. ESPnet2 writes input_size 1 for some encoders."""
        return self.input_size is None or self.encoder in AUDIO_ENCODERS


@dataclass(frozen=True, kw_only=True)
class SpeechDataOptions:
    """Processing of recordings before they go into a batch."""

    channel: int | Literal["all"] | None = option(
        None,
        help="channel of multi-channel recordings to train on, counted from 0; all: all channels, of which the default "
        "frontend uses a random one, as in ESPnet2; null: the mean of the channels, or all if frontend_conf channels "
        "is above 1 or preprocessor_conf force_single_channel is true (Tympan)",
        group=AUGMENT,
        least=0,
    )
    speech_volume_normalize: float | None = option(
        None, help="scale every recording to this peak amplitude; null: no scaling", group=AUGMENT, above=0, most=10**6
    )
    speed_perturb: list[float] = option(
        [],
        help="speed factors such as 0.9 1.0 1.1; one is chosen at random for each utterance; none: no speed "
        "perturbation (Tympan)",
        group=AUGMENT,
        least=0.1,
        most=10,
    )
    volume_perturb: tuple[float, float] | None = option(
        None,
        help="LOWEST,HIGHEST: range of the gain factor that is chosen at random for each utterance, such as 0.5,2; "
        "null: none (Tympan)",
        group=AUGMENT,
        above=0,
        most=1000,
    )
    rir_scp: str | None = option(
        None, help="wav.scp of room impulse responses to convolve the speech with; null: none", group=AUGMENT
    )
    rir_apply_prob: float = option(
        1.0, help="probability of applying a room impulse response to an utterance", group=AUGMENT, least=0, most=1
    )
    noise_scp: str | None = option(
        None, help="wav.scp of noise recordings to add to the speech; null: none", group=AUGMENT
    )
    noise_apply_prob: float = option(
        1.0, help="probability of adding noise to an utterance", group=AUGMENT, least=0, most=1
    )
    noise_db_range: str = option(
        "13_15", help="signal-to-noise ratio of added noise in dB: LOW_HIGH, or one number", group=AUGMENT
    )
    short_noise_thres: float = not_yet(0.5, instead="noise that is shorter than the speech is repeated")
    preprocessor: str = choice(
        PREPROCESSORS,
        "default",
        help="class that tokenizes the text and augments the audio of each utterance",
        group=TEXT,
    )
    preprocessor_conf: dict[str, Any] = conf_of("preprocessor", help="parameters of --preprocessor", group=TEXT)


@dataclass(frozen=True, kw_only=True)
class SpeechTrainConfig(SpeechModelOptions, SpeechDataOptions, InitOptions, TrainConfig):
    """The options of every task with speech input."""

    @property
    def reduce_channels(self) -> int | Literal["mean"] | None:
        """The channel to read from files with several channels, or their mean; None: all channels."""
        if self.channel is not None:
            return None if self.channel == "all" else self.channel
        takes_all = self.frontend_conf.get("channels", 1) > 1
        takes_first = self.preprocessor_conf.get("force_single_channel", False)
        return None if takes_all or takes_first or not self.takes_audio else "mean"

    @staticmethod
    def faults(values: Mapping[str, Any]) -> Iterator[Conflict]:
        yield from TrainConfig.faults(values)
        yield from check_effects(values)


@dataclass(frozen=True, kw_only=True)
class SpeechToTextConfig(TextOptions, SpeechTrainConfig):
    """The options of every task from speech to text."""

    DECODE_DEFAULTS: ClassVar[Mapping[str, Any]] = {}
    """Decode options whose defaults differ for models of this kind."""

    @property
    def text(self) -> TextConfig:
        return text_config(self, self.preprocessor_conf)

    @property
    def token_lists(self) -> dict[str, TextConfig]:
        """Maps the options of token lists to their texts; a saved configuration contains these tokens."""
        return {"token_list": self.text}


def check_speech_model(values: Mapping[str, Any]) -> Iterator[Conflict]:
    """Find conflicts between the options of a model with speech input."""
    takes_audio = values["encoder"] in AUDIO_ENCODERS
    for name in ("frontend", "specaug", "normalize", "preencoder") if takes_audio else ():
        if values[name] is not None:
            text = f"must be null, because the encoder {values['encoder']} takes audio, found {values[name]}"
            yield Conflict((name, "encoder"), text)
    if values["frontend"] is None and values["input_size"] is None and not takes_audio:
        text = "is null, so --input_size must give the dimension of the stored features"
        yield Conflict(("frontend", "input_size"), text)
    gains = values["volume_perturb"]
    if gains is not None and gains[0] > gains[1]:
        yield Conflict(("volume_perturb",), f"expects LOWEST,HIGHEST, found {gains[0]:g},{gains[1]:g}")
    for name in ("encoder", "hier_encoder", "extra_mt_encoder"):
        if values.get(name) == MULTI_SPEAKER_ENCODER and values.get("model") != MULTI_SPEAKER:
            yield Conflict((name,), f"{MULTI_SPEAKER_ENCODER} needs asr_train with --model {MULTI_SPEAKER}")
    if not values["ctc_conf"].get("reduce", True) and values.get("model") != MULTI_SPEAKER:
        text = f"reduce: false gives one loss per utterance, which only --model {MULTI_SPEAKER} uses; remove it"
        yield Conflict(("ctc_conf",), text)
    # A loaded model has the statistics in its weights, and --collect_stats writes the file; only training needs it.
    lacks_file = values["normalize"] == "global_mvn" and values["normalize_conf"].get("stats_file") is None
    if lacks_file and not values["collect_stats"]:
        yield Conflict(("normalize", "normalize_conf"), "global_mvn needs --normalize_conf stats_file=FILE")
