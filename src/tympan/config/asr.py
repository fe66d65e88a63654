"""The options of `asr_train`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tympan.config.choices import ASR_MODELS, TRANSDUCER_DECODERS
from tympan.config.model import (
    MODEL,
    MULTI_SPEAKER,
    MULTI_SPEAKER_ENCODER,
    SpeechToTextConfig,
    check_speech_model,
)
from tympan.config.option import choice, conf_of, not_yet, option
from tympan.config.registry import is_import
from tympan.config.resolve import Conflict
from tympan.config.text import check_text
from tympan.config.train import TrainConfig


@dataclass(frozen=True, kw_only=True)
class AsrTrainConfig(SpeechToTextConfig):
    """The configuration of a recognizer's training run; every `*_conf` is complete."""

    joint_net_conf: dict[str, Any] | None = option(
        None, help="parameters of the joint network of a transducer", group=MODEL
    )
    use_lang_prompt: bool = not_yet(False, instead="models are trained without prompts; leave it out")
    use_nlp_prompt: bool = not_yet(False, instead="models are trained without prompts; leave it out")
    aux_ctc_tasks: list[str] = option(
        [],
        help="data names of additional target texts for intermediate CTC; model_conf aux_ctc assigns them to layers",
        group=MODEL,
    )
    model: str = choice(
        ASR_MODELS, "espnet", help="model class that combines frontend, encoder, decoder and CTC", group=MODEL
    )
    model_conf: dict[str, Any] = conf_of("model", help="parameters of --model", group=MODEL)

    @property
    def text_names(self) -> tuple[str, ...]:
        """The data names of the texts: one for each speaker of `model: pit_espnet`."""
        return _text_names(self.model, self.model_conf)

    @staticmethod
    def conflicts(values: Mapping[str, Any]) -> Iterator[Conflict]:
        yield from TrainConfig.conflicts(values)
        durations = values["model_conf"].get("transducer_multi_blank_durations") or ()
        if len(set(durations)) < len(durations):
            text = f"transducer_multi_blank_durations: each duration only once, found {list(durations)}"
            yield Conflict(("model_conf", "model"), text)
        yield from check_speech_model(values)
        ctc_weight = values["model_conf"].get("ctc_weight", 1.0)
        if values["decoder"] is None and ctc_weight != 1.0:
            text = (
                f"is null, so the model is trained with CTC only: use --model_conf ctc_weight=1.0, found {ctc_weight}"
            )
            yield Conflict(("decoder", "model", "model_conf"), text)
        yield from _check_transducer(values)
        yield from _check_auxiliary_ctc(values)
        yield from _check_preprocessor(values)
        yield from _check_speakers(values)
        if (values["model"] == "maskctc") != (values["decoder"] == "mlm") and values["decoder"] is not None:
            text = f"maskctc and --decoder mlm belong together, found --decoder {values['decoder']}"
            yield Conflict(("model", "decoder"), text if values["model"] == "maskctc" else "needs --model maskctc")
        yield from check_text(values)


def _check_auxiliary_ctc(values: Mapping[str, Any]) -> Iterator[Conflict]:
    layers = values["encoder_conf"].get("interctc_layer_idx") or ()
    for layer, name in (values["model_conf"].get("aux_ctc") or {}).items():
        if name not in values["aux_ctc_tasks"]:
            yield Conflict(("model_conf",), f"aux_ctc uses the text '{name}', which is not in --aux_ctc_tasks")
        if str(layer) not in map(str, layers):
            text = f"aux_ctc names the layer {layer}, but encoder_conf interctc_layer_idx is {list(layers)}"
            yield Conflict(("model_conf", "encoder_conf"), text)


def _text_names(model: str, model_conf: Mapping[str, Any]) -> tuple[str, ...]:
    speakers = model_conf.get("num_ref", 1) if model == MULTI_SPEAKER else 1
    return ("text", *(f"text_spk{number}" for number in range(2, speakers + 1)))


def _check_preprocessor(values: Mapping[str, Any]) -> Iterator[Conflict]:
    """The texts of the preprocessor must be those of the model."""
    model, conf = values["model"], values["preprocessor_conf"]
    names, given = _text_names(model, values["model_conf"]), conf.get("text_name", "text")
    given = (given,) if isinstance(given, str) else tuple(given)
    is_multi, is_used = values["preprocessor"] == "multi", values["use_preprocessor"] and not is_import(model)
    if is_multi and is_used and set(given) != set(names):
        text = f"text_name must be [{', '.join(names)}], the texts of model {model}, found [{', '.join(given)}]"
        yield Conflict(("preprocessor_conf",), text)
    if is_multi and conf.get("speaker_change_symbol") and values["token_type"].startswith("whisper"):
        yield Conflict(("preprocessor_conf",), "speaker_change_symbol is not supported with Whisper's tokens")
    if len(names) > 1 and not is_multi and is_used:
        text = f"must be multi, with preprocessor_conf text_name [{', '.join(names)}], for model {model}"
        yield Conflict(("preprocessor", "model"), text)


def _check_speakers(values: Mapping[str, Any]) -> Iterator[Conflict]:
    """`model: pit_espnet` and its encoder."""
    model, encoder, conf = values["model"], values["encoder"], values["model_conf"]
    if model != MULTI_SPEAKER:
        return
    if encoder != MULTI_SPEAKER_ENCODER and not is_import(encoder or ""):
        yield Conflict(("model", "encoder"), f"{model} needs --encoder {MULTI_SPEAKER_ENCODER}, found {encoder}")
    if values["decoder"] in TRANSDUCER_DECODERS:
        text = f"{model} needs an attention decoder or null (CTC only), found {values['decoder']}"
        yield Conflict(("model", "decoder"), text)
    texts, outputs = conf.get("num_ref", 1), conf.get("num_inf", 1)
    of_encoder = values["encoder_conf"].get("num_inf", outputs)
    if not texts == outputs == of_encoder:
        text = "num_ref, num_inf and encoder_conf num_inf must be the same number of speakers, found "
        yield Conflict(("model_conf", "encoder_conf"), text + f"{texts}, {outputs} and {of_encoder}")
    if not conf.get("ctc_weight", 0.5) > 0:
        yield Conflict(("model_conf",), f"ctc_weight must be above 0: {model} assigns texts to speakers by CTC")
    if (inner := conf.get("interctc_weight", 0.0)) != 0:
        yield Conflict(("model_conf",), f"interctc_weight must be 0 with {model}, found {inner}")


def _check_transducer(values: Mapping[str, Any]) -> Iterator[Conflict]:
    if values["decoder"] in TRANSDUCER_DECODERS:
        return
    names = " or ".join(TRANSDUCER_DECODERS)
    if values["model"] == "transducer":
        yield Conflict(("model", "decoder"), f"is transducer, which needs --decoder {names}, found {values['decoder']}")
    if values["joint_net_conf"]:
        yield Conflict(("joint_net_conf", "decoder"), f"needs --decoder {names}, found {values['decoder']}")
    if values["model_conf"].get("transducer_multi_blank_durations"):
        text = f"transducer_multi_blank_durations needs --decoder {names}, found {values['decoder']}"
        yield Conflict(("model_conf", "decoder"), text)
