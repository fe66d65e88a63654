"""Choose the model, its training and its tokens by the amount of data. Every choice comes with its reason."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tympan.config.batches import BatchOptions
from tympan.data.batch_plan import plan_batches
from tympan.data.shapes import Shapes
from tympan.recipe.survey import Survey, unknown_words

TokenType = Literal["char", "bpe", "word", "phn"]

OPEN_VOCABULARY = 0.05
"""Share of unknown dev words from which a word list is no longer good enough."""
SPARE_STEPS = 1.05
"""Factor on the expected number of updates: the learning rate schedule must not end before the training."""
BYTES_PER_UNIT = 240
"""Memory that training keeps per encoder frame, block and dimension. Measured with 6 blocks of 144."""
FRAMES_PER_SECOND = 25
MOST_EPOCHS = 95
"""Limit for less than an hour of speech, where more epochs keep the number of updates the same."""


@dataclass(frozen=True)
class Size:
    """A model with its training, for up to `hours` of training data."""

    name: str
    hours: float
    blocks: int
    dim: int
    linear_units: int
    decoder_blocks: int
    dropout: float
    mels: int
    epochs: int
    max_lr: float
    warmup: float
    """Share of the updates in which the learning rate rises."""
    batch_s: float
    """Seconds of audio per update."""
    bpe: int
    speeds: tuple[float, ...]


_NINE = (0.85, 0.9, 0.95, 1.0, 1.05, 1.1, 1.15, 1.2, 1.25)
_THREE = (0.9, 1.0, 1.1)
SIZES = (
    Size("small", 3, 6, 144, 576, 0, 0.15, 40, 60, 9e-4, 0.12, 28.125, 100, _NINE),
    Size("medium", 30, 12, 192, 768, 3, 0.1, 80, 60, 1e-3, 0.15, 100, 300, _THREE),
    Size("large", 300, 12, 256, 2048, 6, 0.1, 80, 50, 1e-3, 0.15, 400, 1000, _THREE),
    Size("very large", math.inf, 12, 512, 2048, 6, 0.1, 80, 35, 8e-4, 0.1, 1600, 5000, _THREE),
)


@dataclass(frozen=True)
class Tokens:
    """The chosen tokens. `spells` says that a lexicon of characters is written for the words."""

    kind: TokenType
    reason: str
    nbpe: int = 0
    spells: bool = False


@dataclass(frozen=True)
class Plan:
    """Everything that the configuration files of a new recipe contain."""

    size: Size
    tokens: Tokens
    epochs: int
    batch_bins: int
    accum_grad: int
    total_steps: int
    has_decoder: bool


def size_for(hours: float) -> Size:
    """The size for this many hours of training data."""
    return next(size for size in SIZES if hours < size.hours)


def epochs_for(hours: float) -> int:
    """The number of epochs. `Size.epochs` of the smallest size is for one hour of speech.

    Less speech gets more epochs, so that the number of updates stays the same. More speech needs fewer epochs: the
    number of updates still grows.
    """
    size = size_for(hours)
    if size is not SIZES[0]:
        return size.epochs
    if hours > 1:
        return round(size.epochs / math.sqrt(hours))
    return MOST_EPOCHS if hours * MOST_EPOCHS <= size.epochs else round(size.epochs / hours)


def choose_tokens(
    train: Survey, dev: Survey, *, given: TokenType | None, known: Collection[str], nbpe: int | None
) -> Tokens:
    """The token type, with the reason. `known` are the words of the training text and of --lm_text."""
    size = size_for(train.hours)
    if given == "phn":
        return Tokens("phn", "phones of the lexicon")
    if given is not None:
        return Tokens(given, "as given", nbpe or size.bpe)
    if not train.has_spaces:
        return Tokens("char", "the text is written without spaces")
    if size is not SIZES[0]:
        number = nbpe or min(size.bpe, max(50, len(train.words)))
        return Tokens("bpe", f"subwords, for {train.hours:.0f} h of text with spaces", number)
    unknown = unknown_words(dev, dict.fromkeys(known)).total() / max(1, dev.words.total())
    if unknown > OPEN_VOCABULARY:
        return Tokens(
            "char", f"{100 * unknown:.0f} % of the dev words are not in the text, so any word must be possible"
        )
    return Tokens("phn", "less than 3 h and few unknown words: words are spelled in conf/lexicon.txt", spells=True)


def make_plan(train: Survey, tokens: Tokens, *, memory_bytes: int | None) -> Plan:
    """The model and its training. `memory_bytes` limits the batches; None for accelerators."""
    size = size_for(train.hours)
    batch_s, accum_grad = max(size.batch_s, 1.2 * train.longest_s), 1
    if memory_bytes is not None:
        per_second = FRAMES_PER_SECOND * size.blocks * size.dim * BYTES_PER_UNIT
        affordable_s = max(1.2 * train.longest_s, 0.5 * memory_bytes / per_second)
        accum_grad = max(1, math.ceil(batch_s / affordable_s))
        batch_s /= accum_grad
    epochs = epochs_for(train.hours)
    batch_bins = round(batch_s * train.trained_rate)
    updates = updates_per_epoch(train, BatchOptions(batch_type="length", batch_bins=batch_bins), accum_grad=accum_grad)
    return Plan(
        size=size,
        tokens=tokens,
        epochs=epochs,
        batch_bins=batch_bins,
        accum_grad=accum_grad,
        total_steps=math.ceil(SPARE_STEPS * epochs * updates),
        has_decoder=size.decoder_blocks > 0 and tokens.kind != "phn",
    )


def updates_per_epoch(train: Survey, options: BatchOptions, *, accum_grad: int) -> int:
    """Number of updates per epoch, with batches planned as training plans them, but without the text."""
    lengths = np.resize(np.round(np.array(train.lengths_s) * train.trained_rate).astype(np.int64), train.utterances)
    return math.ceil(len(plan_batches([Shapes("speech", lengths)], options)) / accum_grad)


def spelled(words: Collection[str]) -> list[str]:
    """Lines of a lexicon that spells every word by its characters. The sound of a letter alone is its name."""
    return [f"{word} {f'{word}_' if len(word) == 1 else ' '.join(word)}" for word in sorted(words)]
