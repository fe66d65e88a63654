"""The recipe directories that come with Tympan: `egs/` of the checkout, also inside the wheel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tympan.recipe.options import RecipeOptions

EGS = Path(__file__).parent / "egs"
"""A link to the checkout's `egs/`; a wheel has the files themselves."""


def with_shipped_conf(options: RecipeOptions) -> RecipeOptions:
    """The options with the corpus's own `conf/` files, if the current directory has no `conf/`."""
    home = EGS / options.corpus / "asr1"
    if Path("conf").exists() or not (home / "conf").is_dir():
        return options

    def shipped(given: str) -> str:
        return str(home / given) if given.startswith("conf/") and (home / given).is_file() else given

    return replace(
        options,
        fbank_config=shipped(options.fbank_config),
        pitch_config=shipped(options.pitch_config),
        lexicon=shipped(options.lexicon),
        lm_config=shipped(options.lm_config),
        train_config=shipped(options.train_config),
        preprocess_config=shipped(options.preprocess_config),
        decode_config=shipped(options.decode_config),
    )
