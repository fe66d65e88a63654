"""The options of `st_train`: speech translation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from tympan.config.choices import DECODERS, ENCODERS, ST_MODELS, ST_PREPROCESSORS, TRANSDUCER_DECODERS
from tympan.config.espnet2 import OPTION_ORDER
from tympan.config.model import MODEL, SpeechToTextConfig, check_speech_model
from tympan.config.option import choice, conf_for, conf_of, not_yet, option
from tympan.config.range import Range
from tympan.config.resolve import Conflict
from tympan.config.text import TEXT, TextConfig, TokenType, check_text
from tympan.config.train import TrainConfig

_ORDER = """
    token_list src_token_list init input_size ctc_conf st_joint_net_conf model_conf use_preprocessor token_type
    src_token_type bpemodel src_bpemodel non_linguistic_symbols cleaner g2p src_g2p speech_volume_normalize rir_scp
    rir_apply_prob noise_scp noise_apply_prob noise_db_range short_noise_thres ctc_sample_rate frontend frontend_conf
    specaug specaug_conf normalize normalize_conf preencoder preencoder_conf encoder encoder_conf postencoder
    postencoder_conf decoder decoder_conf extra_asr_decoder extra_asr_decoder_conf extra_mt_decoder
    extra_mt_decoder_conf md_encoder md_encoder_conf hier_encoder hier_encoder_conf extra_mt_encoder
    extra_mt_encoder_conf preprocessor preprocessor_conf
"""
_MULTI_DECODER = "it is an option of the multi-decoder; use --decoder transformer"


@dataclass(frozen=True)
class StPreprocessorConf:
    """The keys of `preprocessor_conf`: ESPnet2's names and defaults. With `fs` 0 recordings keep their sample rate."""

    unk_symbol: str = "<unk>"
    space_symbol: str = "<space>"
    delimiter: str | None = None
    force_single_channel: bool = False
    speech_name: str = "speech"
    text_name: tuple[str, ...] = ("text",)
    """Accepted as ESPnet2 writes it: the names of the texts are text and src_text."""
    tokenizer_encode_conf: tuple[Any, ...] = ({}, {})
    """Accepted as ESPnet2 writes it: sentencepiece encodes without sampling."""
    fs: Annotated[int, Range(0, 1_000_000)] = 0
    nonsplit_symbol: list[str] | None = None
    data_aug_effects: list[Any] | None = None
    data_aug_num: Annotated[tuple[int, int], Range(0, 1_000)] = (1, 1)
    data_aug_prob: Annotated[float, Range(0, 1)] = 0.0
    min_sample_size: Annotated[int, Range(-1)] = -1
    audio_pad_value: Annotated[float, Range(-1_000_000, 1_000_000)] = 0.0
    whisper_language: str | None = None
    whisper_task: str | None = None


@dataclass(frozen=True, kw_only=True)
class StTrainConfig(SpeechToTextConfig):
    """The configuration of a translation model's training run. `text` is the target language, `src_text` the source."""

    DECODE_DEFAULTS: ClassVar[Mapping[str, Any]] = {"ctc_weight": 0.0}
    OPTION_ORDER: ClassVar[tuple[str, ...]] = (
        *OPTION_ORDER[: OPTION_ORDER.index("token_list")],
        *_ORDER.split(),
    )

    src_token_list: str | list[str] | None = option(
        None, help="tokens of the source language, or a file with one per line", group=TEXT
    )
    src_token_type: TokenType = option("bpe", help="type of tokens of the source language", group=TEXT)
    src_bpemodel: str | None = option(
        None, help="sentencepiece model of the source language, for src_token_type bpe", group=TEXT
    )
    src_g2p: str | None = option(None, help="like --g2p, for the source language", group=TEXT)
    model_conf: dict[str, Any] = conf_for(
        ST_MODELS, help="asr_weight, mt_weight, mtlalpha, st_mtlalpha and other parameters of the model", group=MODEL
    )
    decoder: str | None = choice(
        DECODERS, "rnn", help="decoder of the target language; null: CTC only (st_mtlalpha 1)", group=MODEL
    )
    extra_asr_decoder: str | None = choice(
        DECODERS, None, help="decoder of the source language, for asr_weight above 0", group=MODEL
    )
    extra_asr_decoder_conf: dict[str, Any] = conf_of(
        "extra_asr_decoder", help="parameters of --extra_asr_decoder", group=MODEL
    )
    extra_mt_decoder: str | None = choice(
        DECODERS,
        None,
        help="unused decoder, built only so that weights of ESPnet2 can be loaded; text translation uses --decoder",
        group=MODEL,
    )
    extra_mt_decoder_conf: dict[str, Any] = conf_of(
        "extra_mt_decoder", help="parameters of --extra_mt_decoder", group=MODEL
    )
    extra_mt_encoder: str | None = choice(
        ENCODERS, None, help="encoder of source text, for mt_weight above 0", group=MODEL
    )
    extra_mt_encoder_conf: dict[str, Any] = conf_of(
        "extra_mt_encoder", help="parameters of --extra_mt_encoder", group=MODEL
    )
    hier_encoder: str | None = choice(
        ENCODERS, None, help="second encoder, on top of the first, used for translation only", group=MODEL
    )
    hier_encoder_conf: dict[str, Any] = conf_of("hier_encoder", help="parameters of --hier_encoder", group=MODEL)
    preprocessor: str = choice(
        ST_PREPROCESSORS,
        "default",
        help="class that tokenizes the text and augments the audio of each utterance",
        group=TEXT,
    )
    st_joint_net_conf: dict[str, Any] | None = not_yet(
        None, instead="it is an option of transducers, which st_train does not support"
    )
    ctc_sample_rate: float = not_yet(0.0, instead=_MULTI_DECODER)
    md_encoder: str | None = not_yet(None, instead=_MULTI_DECODER)
    md_encoder_conf: dict[str, Any] = not_yet({}, instead=_MULTI_DECODER)

    @property
    def token_lists(self) -> dict[str, TextConfig]:
        target = {"token_list": self.text}
        return target if self.src_token_list is None else {**target, "src_token_list": self.src_text}

    @property
    def src_text(self) -> TextConfig:
        """The source language; cleaners and symbols are those of the target."""
        target = self.text
        return TextConfig(
            token_list=self.src_token_list,
            token_type=self.src_token_type,
            bpemodel=self.src_bpemodel,
            non_linguistic_symbols=target.non_linguistic_symbols,
            cleaner=target.cleaner,
            g2p=self.src_g2p,
            unk_symbol=target.unk_symbol,
            space_symbol=target.space_symbol,
            delimiter=target.delimiter,
            nonsplit_symbol=target.nonsplit_symbol,
        )

    @staticmethod
    def conflicts(values: Mapping[str, Any]) -> Iterator[Conflict]:
        yield from TrainConfig.conflicts(values)
        yield from check_speech_model(values)
        yield from check_text(values)
        for name in ("token_type", "src_token_type"):
            if values[name].startswith("whisper"):
                yield Conflict((name,), f"is {values[name]}: Whisper's tokens are for speech recognition only; use bpe")
        for name in ("decoder", "extra_asr_decoder", "extra_mt_decoder"):
            if values[name] in TRANSDUCER_DECODERS:
                yield Conflict((name,), f"is {values[name]}: transducers are for speech recognition (asr_train) only")
        conf = values["model_conf"]
        helpers = [name for name in ("asr_weight", "mt_weight") if conf.get(name, 0.0) > 0.0]
        names = [name for _, name, _ in values["train_data_path_and_name_and_type"]]
        if helpers and names and "src_text" not in names:
            text = f"{helpers[0]} above 0 needs data named src_text, the transcript in the source language"
            yield Conflict(("model_conf", "train_data_path_and_name_and_type"), text)
        needs_bpe = values["use_preprocessor"] and values["src_token_type"] == "bpe" and values["src_bpemodel"] is None
        if "src_text" in names and needs_bpe:
            yield Conflict(("src_token_type", "src_bpemodel"), "bpe needs --src_bpemodel; or use --src_token_type char")
        if "src_text" in names and values["src_token_list"] is None:
            yield Conflict(
                ("src_token_list",),
                "is required because the data contains src_text: give a file with one token per line",
            )
