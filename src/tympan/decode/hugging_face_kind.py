"""The search of text-to-text models of the Hugging Face hub as a user chooses it. This module imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from tympan.config.option import option
from tympan.decode.search import SearchKind


@dataclass(frozen=True, kw_only=True)
class GenerateOptions:
    """`search_conf` of hugging_face: arguments of `generate` of the package transformers, with its defaults."""

    num_beams: int | None = option(None, help="beam width; null: that of the model's config.json, or 1", least=1)
    max_length: int | None = option(None, help="maximum number of tokens with the first; null: the model's", least=2)
    max_new_tokens: int | None = option(None, help="maximum number of tokens without the first", least=1)
    min_length: int = option(0, help="minimum number of tokens", least=0)
    length_penalty: float = option(1.0, help="exponent of the length that a hypothesis' score is divided by")
    early_stopping: bool = option(False, help="stop as soon as there are num_beams complete hypotheses")
    no_repeat_ngram_size: int = option(0, help="n-grams of this size never occur twice; 0: no limit", least=0)
    repetition_penalty: float = option(1.0, help="penalty for tokens that already occurred; 1: none", above=0)


HUGGING_FACE = SearchKind(
    "hugging_face",
    help="`generate` of the package transformers, for decoder hugging_face_transformers",
    builder="tympan.decode.hugging_face_search:build_hugging_face",
    needs=("decoder",),
    options=GenerateOptions,
)
