"""Language modeling: trained on text to predict the next token."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from tympan.config.lm import LmTrainConfig
from tympan.tasks.text import check_known, complete_text, empty_texts, tokens_of
from tympan.training.task import Finding, Task, Tokens

if TYPE_CHECKING:
    from torch import nn

    from tympan.data.batch import Batches
    from tympan.data.dataset import Preprocess


class LmTask(Task[LmTrainConfig]):
    """Train a language model (ESPnet2's lm_train)."""

    name: ClassVar[str] = "lm"
    config_class = LmTrainConfig
    required_data: ClassVar[tuple[str, ...]] = ("text",)

    def build_model(self, config: LmTrainConfig) -> nn.Module:
        from tympan.models.build import build_lm

        return build_lm(config)

    def complete(self, config: LmTrainConfig) -> LmTrainConfig:
        return replace(config, token_list=complete_text(config.text))

    def preprocess(self, config: LmTrainConfig, *, sample_rate: int | None, is_augmented: bool) -> Preprocess | None:
        if not config.use_preprocessor:
            return None
        from tympan.data.preprocess import Preprocessor
        from tympan.text.codec import build_codec

        return Preprocessor(texts={"text": build_codec(config.text)})

    def tokens(self, config: LmTrainConfig) -> dict[str, Tokens]:
        return {"text": tokens_of(config.text)}

    def files(self, config: LmTrainConfig) -> list[str | None]:
        return [config.bpemodel]

    def findings(self, config: LmTrainConfig, *, model: nn.Module, batches: Batches) -> Iterable[Finding]:
        yield from empty_texts(batches, "text")
        if config.use_preprocessor:
            check_known(config.train_data_path_and_name_and_type, "text", config.text)
