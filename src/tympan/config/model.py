"""The options of models that hear: what ASR and speech translation share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from tympan.config.choices import (
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
AUGMENT = "augmentation"

Initialization = Literal[
    "pytorch", "chainer", "xavier_uniform", "xavier_normal", "kaiming_uniform", "kaiming_normal", "normal"
]


@dataclass(frozen=True, kw_only=True)
class InitOptions:
    """How a model's weights start."""

    init: Initialization | None = option(
        None, help="initialization of the weights; null keeps that of the layers", group=MODEL
    )


@dataclass(frozen=True, kw_only=True)
class SpeechModelOptions:
    """The parts of a model from audio to encoder and decoder."""

    input_size: int | None = option(
        None, help="size of stored features; null means audio and a frontend", group=MODEL, least=1
    )
    ctc_conf: dict[str, Any] = conf_for(CTCS, help="parameters of CTC", group=MODEL)
    frontend: str | None = choice(FRONTENDS, "default", help="from audio to features", group=MODEL)
    frontend_conf: dict[str, Any] = conf_of("frontend", help="its parameters", group=MODEL)
    specaug: str | None = choice(SPECAUGS, None, help="masking of features", group=MODEL)
    specaug_conf: dict[str, Any] = conf_of("specaug", help="its parameters", group=MODEL)
    normalize: str | None = choice(NORMALIZERS, "utterance_mvn", help="normalisation of features", group=MODEL)
    normalize_conf: dict[str, Any] = conf_of("normalize", help="its parameters", group=MODEL)
    preencoder: str | None = choice(PREENCODERS, None, help="before the encoder", group=MODEL)
    preencoder_conf: dict[str, Any] = conf_of("preencoder", help="its parameters", group=MODEL)
    encoder: str = choice(ENCODERS, "rnn", help="encoder", group=MODEL)
    encoder_conf: dict[str, Any] = conf_of("encoder", help="its parameters", group=MODEL)
    postencoder: str | None = choice(POSTENCODERS, None, help="after the encoder", group=MODEL)
    postencoder_conf: dict[str, Any] = conf_of("postencoder", help="its parameters", group=MODEL)
    decoder: str | None = choice(DECODERS, None, help="decoder; null for CTC only", group=MODEL)
    decoder_conf: dict[str, Any] = conf_of("decoder", help="its parameters", group=MODEL)


@dataclass(frozen=True, kw_only=True)
class SpeechDataOptions:
    """What happens to recordings between their files and the batch."""

    speech_volume_normalize: float | None = option(
        None, help="peak to scale audio to", group=AUGMENT, above=0, most=10**6
    )
    speed_perturb: list[float] = option(
        [], help="speeds to choose from on the fly (Tympan)", group=AUGMENT, least=0.1, most=10
    )
    volume_perturb: tuple[float, float] | None = option(
        None,
        help="lowest and highest gain to choose from on the fly, such as 0.5,2 (Tympan)",
        group=AUGMENT,
        above=0,
        most=1000,
    )
    rir_scp: str | None = option(None, help="room impulse responses", group=AUGMENT)
    rir_apply_prob: float = option(
        1.0, help="probability of applying a room impulse response to an utterance", group=AUGMENT, least=0, most=1
    )
    noise_scp: str | None = option(None, help="noise recordings", group=AUGMENT)
    noise_apply_prob: float = option(
        1.0, help="probability of adding noise to an utterance", group=AUGMENT, least=0, most=1
    )
    noise_db_range: str = option("13_15", help="LOW_HIGH signal-to-noise ratio in dB, or one number", group=AUGMENT)
    short_noise_thres: float = not_yet(0.5, instead="noise that is shorter than the speech is repeated")
    preprocessor: str = choice(PREPROCESSORS, "default", help="treatment of an utterance", group=TEXT)
    preprocessor_conf: dict[str, Any] = conf_of("preprocessor", help="its parameters", group=TEXT)


@dataclass(frozen=True, kw_only=True)
class SpeechTrainConfig(SpeechModelOptions, SpeechDataOptions, InitOptions, TrainConfig):
    """The options of every task that hears."""

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
        """By option, the texts whose tokens a saved configuration holds."""
        return {"token_list": self.text}


def check_speech_model(values: Mapping[str, Any]) -> Iterator[Conflict]:
    """Conflicts between the options of a model that hears."""
    if values["frontend"] is None and values["input_size"] is None:
        text = "is null, so --input_size must say how many values a frame of the features has"
        yield Conflict(("frontend", "input_size"), text)
    gains = values["volume_perturb"]
    if gains is not None and gains[0] > gains[1]:
        yield Conflict(("volume_perturb",), f"wants LOWEST,HIGHEST, found {gains[0]:g},{gains[1]:g}")
    # A model that is loaded has its statistics in its weights, and --collect_stats makes the file; training needs it.
    lacks_file = values["normalize"] == "global_mvn" and values["normalize_conf"].get("stats_file") is None
    if lacks_file and not values["collect_stats"]:
        yield Conflict(("normalize", "normalize_conf"), "global_mvn needs --normalize_conf stats_file=FILE")
