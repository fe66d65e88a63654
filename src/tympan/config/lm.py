"""The options of `lm_train`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tympan.config.asr import MODEL, OTHER_TOKENS, TEXT, Initialization, TokenType
from tympan.config.choices import LM_MODELS, LMS
from tympan.config.option import choice, conf_of, option
from tympan.config.train import TrainConfig


@dataclass(frozen=True, kw_only=True)
class LmTrainConfig(TrainConfig):
    """The configuration of a language model's training run; every `*_conf` is complete."""

    init: Initialization | None = option(None, help="how weights begin; null leaves them to the layers", group=MODEL)
    use_preprocessor: bool = option(True, help="tokenize; false takes token ids", group=TEXT)
    token_type: TokenType = option("bpe", help="kind of tokens", group=TEXT, not_yet_values=OTHER_TOKENS)
    bpemodel: str | None = option(None, help="sentencepiece model, for bpe", group=TEXT)
    non_linguistic_symbols: str | list[str] | None = option(
        None, help="symbols such as <noise>, or a file of them", group=TEXT
    )
    cleaner: str | list[str] | None = option(None, help="treatment of text before tokenizing", group=TEXT)
    g2p: str | None = option(None, help="for phn: a grapheme-to-phoneme package, or the file of a lexicon", group=TEXT)
    lm: str = choice(LMS, "seq_rnn", help="language model", group=MODEL)
    lm_conf: dict[str, Any] = conf_of("lm", help="its parameters", group=MODEL)
    model: str = choice(LM_MODELS, "lm", help="the model as a whole", group=MODEL)
    model_conf: dict[str, Any] = conf_of("model", help="its parameters", group=MODEL)
