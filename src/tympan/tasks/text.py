"""Code shared by the tasks with text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tympan.config.text import TextConfig
from tympan.errors import UserError
from tympan.training.task import Finding, Tokens

if TYPE_CHECKING:
    from tympan.data.batch import Batches


def complete_text(text: TextConfig) -> list[str]:
    """The token list as it is saved: the tokens themselves instead of a file."""
    from tympan.text.codec import read_vocabulary

    return list(read_vocabulary(text).tokens)


def tokens_of(text: TextConfig) -> Tokens:
    """The tokens of a completed configuration."""
    assert isinstance(text.token_list, list), "the configuration is not complete"
    return Tokens(text.token_type, tuple(text.token_list))


def empty_texts(batches: Batches, name: str) -> Iterator[Finding]:
    """Utterances with empty text. If all texts are empty, a UserError is raised."""
    tokens = batches.lengths().get(name)
    if tokens is None:
        return
    empty = [row for row, length in enumerate(tokens.tolist()) if length == 0]
    if len(empty) == len(tokens):
        raise UserError(
            f"all {len(tokens)} transcripts are empty. Lines of the {name} file are 'UTTERANCE-ID TRANSCRIPT'"
        )
    yield Finding("utterances have an empty transcript", [batches.utterance(row).id for row in empty])


def long_texts(batches: Batches, name: str, most: int) -> Iterator[Finding]:
    """Utterances whose text has more than `most` tokens, ESPnet2's `text_length_warning_thres`; 0 or less is none."""
    tokens = batches.lengths().get(name)
    if tokens is None or most <= 0:
        return
    rows = [row for row, length in enumerate(tokens.tolist()) if length > most]
    message = f"utterances have more than {most} tokens (preprocessor_conf text_length_warning_thres), check the data"
    yield Finding(message, [batches.utterance(row).id for row in rows])
