"""A text that is to be aligned: its tokens, and what of it the model does not know."""

from __future__ import annotations

from dataclasses import dataclass

from tympan.errors import UserError
from tympan.text.codec import WORD_START, TextCodec
from tympan.text.phonemes import PhonemeTokenizer

MAX_NAMED = 10


@dataclass(frozen=True)
class GivenText:
    text: str
    """After the model's cleaner."""
    tokens: tuple[str, ...]
    ids: tuple[int, ...]
    words: tuple[tuple[str, int], ...] | None
    """Words with how many of the tokens each takes, where tokens are phones of a lexicon."""
    unknown: tuple[str, ...]
    """Tokens (words, where tokens are phones) that are unknown to the model, each once."""


def read_given_text(text: str, codec: TextCodec) -> GivenText:
    """UserError for a text without tokens, or only unknown ones: any alignment of it would be chance."""
    vocabulary, tokenizer = codec.vocabulary, codec.tokenizer
    text = codec.cleaner(text)
    tokens = tokenizer.text2tokens(text)
    ids = vocabulary.tokens2ids(tokens)
    if not text.strip() or not ids:
        raise UserError("there is no text to align")
    words = tokenizer.text2words(text) if isinstance(tokenizer, PhonemeTokenizer) else None
    names = tokens if words is None else [word for word, count in words for _ in range(count)]
    unknown = tuple(dict.fromkeys(name for name, number in zip(names, ids, strict=True) if number == vocabulary.unk_id))
    # A token that represents a space says nothing: knowing it does not mean that the text is known.
    silent = (tokenizer.space_symbol, WORD_START)
    if all(number == vocabulary.unk_id for token, number in zip(tokens, ids, strict=True) if token not in silent):
        raise UserError(
            f"the model knows nothing of this text ({name_some(unknown)}): write it as the texts of the training data, "
            "with the same case and script"
        )
    return GivenText(text, tuple(tokens), tuple(ids), None if words is None else tuple(words), unknown)


def name_some(tokens: tuple[str, ...]) -> str:
    """`'a', 'b' and 7 more`"""
    named = ", ".join(f"'{token}'" for token in tokens[:MAX_NAMED])
    return named if len(tokens) <= MAX_NAMED else f"{named} and {len(tokens) - MAX_NAMED} more"
