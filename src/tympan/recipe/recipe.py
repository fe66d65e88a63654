"""A recipe: the corpus, the tokens, the source of features, and the user's options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tympan.config import parse_args
from tympan.config.command_line import read_command_line
from tympan.config.mistakes import Mistakes
from tympan.config.option import options_of
from tympan.recipe.corpus import Corpus, defaults_of, find_corpus
from tympan.recipe.feature_source import FeatureSource
from tympan.recipe.options import RecipeOptions, with_defaults
from tympan.recipe.raw_audio import RawAudio
from tympan.recipe.shipped import with_shipped_conf
from tympan.recipe.stored_features import StoredFeatures
from tympan.recipe.tokens import Tokens, find_tokens


@dataclass(frozen=True)
class Recipe:
    """The parts of a recipe, chosen once. Stages call their methods instead of checking their types."""

    options: RecipeOptions
    corpus: Corpus
    tokens: Tokens
    features: FeatureSource

    @classmethod
    def of(cls, options: RecipeOptions, corpus: Corpus | None = None) -> Recipe:
        """Build the recipe from the options."""
        options = with_shipped_conf(options)
        tokens = find_tokens(options)
        found = find_corpus(options) if corpus is None else corpus
        return cls(options, found, tokens, find_features(options, tokens))

    @property
    def train_set(self) -> str:
        """Name of the training set."""
        return self.features.train_set(self.corpus.train)

    @property
    def asr_dir(self) -> Path:
        return self.options.asr_dir(self.train_set)

    @property
    def model_file(self) -> Path:
        """The weights to decode with."""
        return self.asr_dir / self.options.model_file

    def decode_dir(self, name: str) -> Path:
        return self.options.decode_dir(self.train_set, name)


def find_features(options: RecipeOptions, tokens: Tokens) -> FeatureSource:
    """The source selected by --feats_type."""
    if options.feats_type == "raw":
        return RawAudio(options, tokens)
    return StoredFeatures(options, tokens, options.feats_type, has_pitch=options.feats_type == "fbank_pitch")


def parse_options(argv: Sequence[str], *, description: str | None = None) -> RecipeOptions:
    """Parse the options of `tympan recipe`, with the defaults of the corpus on the command line."""
    line = read_command_line(argv, options_of(RecipeOptions), Mistakes())  # parse_args reports the mistakes
    corpus = line.values.get("corpus")
    schema = with_defaults(defaults_of(corpus), corpus=corpus) if isinstance(corpus, str) else RecipeOptions
    return parse_args(schema, argv, prog="tympan recipe", description=description)
