"""The options of `asr_train`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tympan.config.choices import ASR_MODELS
from tympan.config.model import MODEL, SpeechToTextConfig, check_speech_model
from tympan.config.option import choice, conf_of, not_yet
from tympan.config.resolve import Conflict
from tympan.config.text import check_text
from tympan.config.train import TrainConfig


@dataclass(frozen=True, kw_only=True)
class AsrTrainConfig(SpeechToTextConfig):
    """The configuration of a recognizer's training run; every `*_conf` is complete."""

    joint_net_conf: dict[str, Any] | None = not_yet(None, instead="it belongs to the transducer")
    use_lang_prompt: bool = not_yet(False, instead="leave it out")
    use_nlp_prompt: bool = not_yet(False, instead="leave it out")
    aux_ctc_tasks: list[str] = not_yet([], instead="leave it out")
    model: str = choice(ASR_MODELS, "espnet", help="the model as a whole", group=MODEL)
    model_conf: dict[str, Any] = conf_of("model", help="its parameters", group=MODEL)

    @staticmethod
    def conflicts(values: Mapping[str, Any]) -> Iterator[Conflict]:
        yield from TrainConfig.conflicts(values)
        yield from check_speech_model(values)
        ctc_weight = values["model_conf"].get("ctc_weight", 1.0)
        if values["decoder"] is None and ctc_weight != 1.0:
            text = f"is null, so CTC is alone: it needs --model_conf ctc_weight=1.0, found {ctc_weight}"
            yield Conflict(("decoder", "model", "model_conf"), text)
        yield from check_text(values)
