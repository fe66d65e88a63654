"""Code shared by the tasks with text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tympan.config.text import TextConfig
from tympan.errors import UserError
from tympan.training.task import Finding, Tokens

if TYPE_CHECKING:
    from tympan.data.batch import Batches

_TEXTS_TO_CHECK = 100


def complete_text(text: TextConfig) -> list[str]:
    """The token list as it is saved: the tokens themselves instead of a file."""
    from tympan.text.codec import read_vocabulary

    return list(read_vocabulary(text, converts_text=False).tokens)


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


def check_known(data: Sequence[tuple[str, str, str]], name: str, text: TextConfig) -> None:
    """UserError if the first texts have only unknown tokens: a model would learn nothing but <unk>."""
    paths = [path for path, own, kind in data if (own, kind) == (name, "text")]
    if not paths or not Path(paths[0]).is_file():
        return
    from tympan.data.table import Table
    from tympan.text.codec import build_codec

    codec, table = build_codec(text), Table(Path(paths[0]))
    if text.unk_symbol not in codec.vocabulary:  # Whisper's tokens
        return
    texts = [table.value(line) for line in range(min(len(table), _TEXTS_TO_CHECK))]
    ids = [number for one in texts for number in codec(one).tolist()]
    if ids and all(number == codec.vocabulary.unk_id for number in ids):
        raise UserError(
            f"{paths[0]}: all {len(ids)} tokens of the first texts are unknown, such as in '{texts[0]}': the "
            f"token list (token_list, token_type {text.token_type}) was probably made from another text"
        )


def long_texts(batches: Batches, name: str, most: int = 500, *, option: str | None = None) -> Iterator[Finding]:
    """Utterances whose text has more than `most` tokens, ESPnet2's `text_length_warning_thres`; 0 or less is none.

    `option` is the option that sets `most`, if there is one.
    """
    tokens = batches.lengths().get(name)
    if tokens is None or most <= 0:
        return
    rows = [row for row, length in enumerate(tokens.tolist()) if length > most]
    where = f"in {name}" if option is None else f"({option})"
    message = f"utterances have more than {most} tokens {where}, check the data"
    yield Finding(message, [batches.utterance(row).id for row in rows])
