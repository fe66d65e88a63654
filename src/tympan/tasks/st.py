"""Speech translation: trained on speech and translations. The source transcript is optional."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from tympan.config.st import StTrainConfig
from tympan.errors import UserError
from tympan.tasks.speech import speech_files, speech_preprocess, speech_rate, too_short, without_normalization
from tympan.tasks.text import check_known, complete_text, empty_texts, long_texts, tokens_of
from tympan.training.task import Finding, Task, Tokens

if TYPE_CHECKING:
    from torch import nn

    from tympan.data.audio import Channel
    from tympan.data.batch import Batches
    from tympan.data.dataset import Preprocess


class StTask(Task[StTrainConfig]):
    """Train a speech translation model (ESPnet2's st_train)."""

    name: ClassVar[str] = "st"
    config_class = StTrainConfig
    required_data: ClassVar[tuple[str, ...]] = ("speech", "text")
    optional_data: ClassVar[tuple[str, ...]] = ("src_text",)

    def build_model(self, config: StTrainConfig) -> nn.Module:
        from tympan.models.st_build import build_st_model

        return build_st_model(config)

    def complete(self, config: StTrainConfig) -> StTrainConfig:
        target, source = complete_text(config.text), None
        if config.src_token_list is not None:
            with _about_the_source():
                source = complete_text(config.src_text)
        return replace(config, token_list=target, src_token_list=source)

    def preprocess(self, config: StTrainConfig, *, sample_rate: int | None, is_augmented: bool) -> Preprocess | None:
        if not config.use_preprocessor:
            return None
        from tympan.text.codec import build_codec

        texts = {"text": build_codec(config.text)}
        if config.src_token_list is not None:
            with _about_the_source():
                texts["src_text"] = build_codec(config.src_text)
        return speech_preprocess(config, texts=texts, rate=sample_rate, is_augmented=is_augmented)

    def sample_rate(self, config: StTrainConfig) -> int | None:
        return speech_rate(config)

    def channel(self, config: StTrainConfig) -> Channel | None:
        return config.reduce_channels

    def tokens(self, config: StTrainConfig) -> dict[str, Tokens]:
        found = {"text": tokens_of(config.text)}
        return found if config.src_token_list is None else {**found, "src_text": tokens_of(config.src_text)}

    def for_statistics(self, config: StTrainConfig) -> StTrainConfig:
        return without_normalization(config)

    def files(self, config: StTrainConfig) -> list[str | None]:
        return [config.bpemodel, config.src_bpemodel, *speech_files(config)]

    def findings(self, config: StTrainConfig, *, model: nn.Module, batches: Batches) -> Iterable[Finding]:
        from tympan.models.st import StModel

        assert isinstance(model, StModel)
        encoders = "encoder_conf or of hier_encoder_conf" if config.hier_encoder else "encoder_conf"
        sides = (("text", config.text, model), ("src_text", config.src_text, model.source_side))
        for name, text, side in sides:
            yield from empty_texts(batches, name)
            if config.use_preprocessor and text.token_list is not None:
                check_known(config.train_data_path_and_name_and_type, name, text)
            yield from long_texts(batches, name)
            yield from too_short(side, batches, config.speed_perturb, text=name, encoders=encoders)


@contextmanager
def _about_the_source() -> Iterator[None]:
    """Inside, a message about the tokens names the options of the source language."""
    try:
        yield
    except UserError as error:
        options = "src_token_type, src_token_list, src_bpemodel and src_g2p"
        raise UserError(f"source language ({options}): {error}") from error
