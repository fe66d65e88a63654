"""Load an n-gram model from a file of any supported format."""

from __future__ import annotations

import os
from pathlib import Path

from tympan.errors import UserError
from tympan.text.ngram.arpa_reader import read_arpa
from tympan.text.ngram.binary import is_binary, read_binary
from tympan.text.ngram.model import NgramModel

_KENLM_MAGIC = b"mmap lm http://kheafield.com/code format version"


def load_ngram(path: str | os.PathLike[str]) -> NgramModel:
    """Load ARPA text, plain or gzip, or Tympan's binary format. The format is detected from the content."""
    if not Path(path).is_file():
        raise UserError(f"{path}: no such n-gram model")
    if is_binary(path):
        return read_binary(path)
    with open(path, "rb") as stream:
        if stream.read(len(_KENLM_MAGIC)) == _KENLM_MAGIC:
            raise UserError(f"{path}: this is a binary file of KenLM; use the ARPA file that it was made from")
    return read_arpa(str(path))
