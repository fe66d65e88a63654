"""The options of `asr_train`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from tympan.config.choices import (
    ASR_MODELS,
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
from tympan.config.option import choice, conf_for, conf_of, not_yet, option
from tympan.config.train import TrainConfig

MODEL = "model"
TEXT = "text"
AUGMENT = "augmentation"

Initialization = Literal["pytorch", "chainer", "xavier_uniform", "xavier_normal", "kaiming_uniform", "kaiming_normal"]
TokenType = Literal["bpe", "char", "word", "phn"]
OTHER_TOKENS = dict.fromkeys(
    ("hugging_face", "whisper_en", "whisper_multilingual"), "use 'bpe', 'char', 'word' or 'phn'"
)


@dataclass(frozen=True, kw_only=True)
class AsrTrainConfig(TrainConfig):
    """The configuration of a recogniser's training run; every `*_conf` is complete."""

    init: Initialization | None = option(None, help="how weights begin; null leaves them to the layers", group=MODEL)
    input_size: int | None = option(None, help="size of stored features; null means audio and a frontend", group=MODEL)
    ctc_conf: dict[str, Any] = conf_for(CTCS, help="parameters of CTC", group=MODEL)
    joint_net_conf: dict[str, Any] | None = not_yet(None, instead="it belongs to the transducer")
    use_preprocessor: bool = option(True, help="tokenize and augment; false takes token ids", group=TEXT)
    use_lang_prompt: bool = not_yet(False, instead="leave it out")
    use_nlp_prompt: bool = not_yet(False, instead="leave it out")
    token_type: TokenType = option("bpe", help="kind of tokens", group=TEXT, not_yet_values=OTHER_TOKENS)
    bpemodel: str | None = option(None, help="sentencepiece model, for bpe", group=TEXT)
    non_linguistic_symbols: str | list[str] | None = option(
        None, help="symbols such as <noise>, or a file of them", group=TEXT
    )
    cleaner: str | list[str] | None = option(None, help="treatment of text before tokenizing", group=TEXT)
    g2p: str | None = option(None, help="for phn: a grapheme-to-phoneme package, or the file of a lexicon", group=TEXT)
    speech_volume_normalize: float | None = option(None, help="peak to scale audio to", group=AUGMENT)
    speed_perturb: list[float] = option([], help="speeds to choose from on the fly (Tympan)", group=AUGMENT)
    volume_perturb: tuple[float, float] | None = option(
        None, help="lowest and highest gain to choose from on the fly, such as 0.5,2 (Tympan)", group=AUGMENT
    )
    rir_scp: str | None = option(None, help="room impulse responses", group=AUGMENT)
    rir_apply_prob: float = option(1.0, help="probability of a room", group=AUGMENT)
    noise_scp: str | None = option(None, help="noise recordings", group=AUGMENT)
    noise_apply_prob: float = option(1.0, help="probability of noise", group=AUGMENT)
    noise_db_range: str = option("13_15", help="LOW_HIGH signal-to-noise ratio in dB, or one number", group=AUGMENT)
    short_noise_thres: float = not_yet(0.5, instead="noise that is shorter than the speech is repeated")
    aux_ctc_tasks: list[str] = not_yet([], instead="leave it out")
    frontend: str | None = choice(FRONTENDS, "default", help="from audio to features", group=MODEL)
    frontend_conf: dict[str, Any] = conf_of("frontend", help="its parameters", group=MODEL)
    specaug: str | None = choice(SPECAUGS, None, help="masking of features", group=MODEL)
    specaug_conf: dict[str, Any] = conf_of("specaug", help="its parameters", group=MODEL)
    normalize: str | None = choice(NORMALIZERS, "utterance_mvn", help="normalisation of features", group=MODEL)
    normalize_conf: dict[str, Any] = conf_of("normalize", help="its parameters", group=MODEL)
    model: str = choice(ASR_MODELS, "espnet", help="the model as a whole", group=MODEL)
    model_conf: dict[str, Any] = conf_of("model", help="its parameters", group=MODEL)
    preencoder: str | None = choice(PREENCODERS, None, help="before the encoder", group=MODEL)
    preencoder_conf: dict[str, Any] = conf_of("preencoder", help="its parameters", group=MODEL)
    encoder: str = choice(ENCODERS, "rnn", help="encoder", group=MODEL)
    encoder_conf: dict[str, Any] = conf_of("encoder", help="its parameters", group=MODEL)
    postencoder: str | None = choice(POSTENCODERS, None, help="after the encoder", group=MODEL)
    postencoder_conf: dict[str, Any] = conf_of("postencoder", help="its parameters", group=MODEL)
    decoder: str | None = choice(DECODERS, None, help="decoder; null for CTC alone", group=MODEL)
    decoder_conf: dict[str, Any] = conf_of("decoder", help="its parameters", group=MODEL)
    preprocessor: str = choice(PREPROCESSORS, "default", help="treatment of an utterance", group=TEXT)
    preprocessor_conf: dict[str, Any] = conf_of("preprocessor", help="its parameters", group=TEXT)
