"""Speech recognition: trained on speech and transcripts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from tympan.config.asr import AsrTrainConfig
from tympan.tasks.speech import (
    speech_files,
    speech_preprocess,
    speech_rate,
    too_short,
    without_normalization,
)
from tympan.tasks.text import check_known, complete_text, empty_texts, long_texts, tokens_of
from tympan.training.task import Finding, Task, Tokens

if TYPE_CHECKING:
    from torch import nn

    from tympan.data.audio import Channel
    from tympan.data.batch import Batches
    from tympan.data.dataset import Preprocess


class AsrTask(Task[AsrTrainConfig]):
    """Train a speech recognizer (ESPnet2's asr_train)."""

    name: ClassVar[str] = "asr"
    config_class = AsrTrainConfig
    required_data: ClassVar[tuple[str, ...]] = ("speech", "text")

    def build_model(self, config: AsrTrainConfig) -> nn.Module:
        from tympan.models.build import build_asr_model

        return build_asr_model(config)

    def complete(self, config: AsrTrainConfig) -> AsrTrainConfig:
        return replace(config, token_list=_with_big_blanks(complete_text(config.text), config.model_conf))

    def preprocess(self, config: AsrTrainConfig, *, sample_rate: int | None, is_augmented: bool) -> Preprocess | None:
        if not config.use_preprocessor:
            return None
        from tympan.text.codec import build_codec

        named = config.preprocessor_conf.get("text_name", "text")
        names = [*([named] if isinstance(named, str) else named), *config.aux_ctc_tasks]
        texts = dict.fromkeys(names, build_codec(config.text))
        return speech_preprocess(config, texts=texts, rate=sample_rate, is_augmented=is_augmented)

    def more_data(self, config: AsrTrainConfig) -> tuple[str, ...]:
        return (*config.text_names[1:], *config.aux_ctc_tasks)

    def sample_rate(self, config: AsrTrainConfig) -> int | None:
        return speech_rate(config)

    def channel(self, config: AsrTrainConfig) -> Channel | None:
        return config.reduce_channels

    def tokens(self, config: AsrTrainConfig) -> dict[str, Tokens]:
        return {"text": tokens_of(config.text)}

    def for_statistics(self, config: AsrTrainConfig) -> AsrTrainConfig:
        return without_normalization(config)

    def files(self, config: AsrTrainConfig) -> list[str | None]:
        return [config.bpemodel, *speech_files(config)]

    def findings(self, config: AsrTrainConfig, *, model: nn.Module, batches: Batches) -> Iterable[Finding]:
        for name in config.text_names:
            yield from empty_texts(batches, name)
            if config.use_preprocessor:
                check_known(config.train_data_path_and_name_and_type, name, config.text)
            if config.preprocessor == "multi":  # it has no key for this, as in ESPnet2
                yield from long_texts(batches, name)
            else:
                most = config.preprocessor_conf.get("text_length_warning_thres", 500)
                yield from long_texts(batches, name, most, option="preprocessor_conf text_length_warning_thres")
            yield from too_short(model, batches, config.speed_perturb, text=name)


def _with_big_blanks(tokens: list[str], model_conf: Mapping[str, Any]) -> list[str]:
    """Insert the tokens of multi-blank transducers before the blank, the longest first, as in ESPnet2."""
    durations = model_conf.get("transducer_multi_blank_durations") or ()
    place = tokens.index(blank) if (blank := model_conf.get("sym_blank", "<blank>")) in tokens else 0
    added = [f"<blank{duration}>" for duration in reversed(durations)]
    return [*tokens[:place], *(token for token in added if token not in tokens), *tokens[place:]]
