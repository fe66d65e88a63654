"""The language model of a training configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tympan.config import choices
from tympan.errors import UserError
from tympan.models.initialize import initialize
from tympan.models.lm.model import LanguageModel

if TYPE_CHECKING:
    from tympan.config.lm import LmTrainConfig


def build_lm(config: LmTrainConfig) -> LanguageModel:
    """Build the model of `config`, with the initialization of `config.init`."""
    if not config.token_list:
        raise UserError("a language model needs --token_list")
    vocab_size = len(config.token_list)
    lm = choices.LMS.build(config.lm, config.lm_conf, vocab_size=vocab_size)
    model: LanguageModel = choices.LM_MODELS.build(config.model, config.model_conf, lm=lm, vocab_size=vocab_size)
    initialize(model, config.init)
    return model
