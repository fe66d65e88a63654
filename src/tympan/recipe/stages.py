"""The recipe's stages, with its numbers."""

from __future__ import annotations

from functools import partial

from tympan.recipe.corpus import Corpus
from tympan.recipe.decode_steps import decode_steps
from tympan.recipe.feature_steps import feature_steps
from tympan.recipe.options import RecipeOptions
from tympan.recipe.stage import Stage
from tympan.recipe.token_steps import token_steps
from tympan.recipe.training_steps import asr_steps, lm_steps


def build_stages(options: RecipeOptions, corpus: Corpus) -> list[Stage]:
    """Stages -1 to 5."""
    return [
        Stage(-1, "download", "download and unpack", corpus.download),
        Stage(0, "data", "data preparation", corpus.prepare),
        Stage(1, "features", "speed perturbation, features, normalisation", partial(feature_steps, options, corpus)),
        Stage(2, "dictionary", "dictionary and lengths", partial(token_steps, options, corpus)),
        Stage(3, "lm", "language models", partial(lm_steps, options, corpus)),
        Stage(4, "train", "training", partial(asr_steps, options, corpus)),
        Stage(5, "decode", "decoding and scoring", partial(decode_steps, options, corpus)),
    ]
