"""`token_type: hugging_face`: the tokens of a text model of the Hugging Face hub, from its tokenizer.json."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

from tympan.errors import UserError
from tympan.text.whisper import read_tokenizer

TOKENIZER = "tokenizer.json"


class HuggingFaceTokenizer:
    """Splits and joins text as `tokenizer.json` says. `bpemodel` is this file, or a folder that contains it."""

    space_symbol: None = None

    def __init__(self, bpemodel: str | Path | None) -> None:
        self.path = tokenizer_file(bpemodel)

    def text2tokens(self, line: str) -> list[str]:
        tokens: list[str] = self._tokenizer.encode(line, add_special_tokens=False).tokens
        return tokens

    def tokens2text(self, tokens: Iterable[str]) -> str:
        """The text without special tokens."""
        special = {item.content for item in self._tokenizer.get_added_tokens_decoder().values() if item.special}
        kept = [token for token in tokens if token not in special]
        decoder = self._tokenizer.decoder
        text: str = "".join(kept) if decoder is None else decoder.decode(kept)
        return text.strip()

    @cached_property
    def _tokenizer(self) -> Any:
        return read_tokenizer(self.path)

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}


def read_tokens(bpemodel: str | Path | None) -> list[str]:
    """The tokens by id, without those that were added to the model's own, as ESPnet2 exports them."""
    tokenizer = read_tokenizer(tokenizer_file(bpemodel))
    by_id = {index: token for token, index in tokenizer.get_vocab(with_added_tokens=True).items()}
    return [by_id.get(index, "") for index in range(tokenizer.get_vocab_size(with_added_tokens=False))]


def tokenizer_file(bpemodel: str | Path | None) -> Path:
    """The tokenizer.json of a folder, or the file itself."""
    path = Path(bpemodel) if bpemodel is not None else None
    path = path / TOKENIZER if path is not None and path.is_dir() else path
    if path is None or not path.is_file():
        raise UserError(
            f"token_type hugging_face needs --bpemodel FOLDER with {TOKENIZER}, found {bpemodel}; fetch this file from "
            "the repository of the model on https://huggingface.co"
        )
    return path
