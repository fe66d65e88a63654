"""Load an n-gram model from a file of any supported format."""

from __future__ import annotations

import os

from tympan.errors import UserError
from tympan.files import explained, open_file
from tympan.text.ngram.arpa_reader import read_arpa
from tympan.text.ngram.binary import MAGIC, read_binary
from tympan.text.ngram.model import NgramModel

_KENLM_MAGIC = b"mmap lm http://kheafield.com/code format version"


def is_kenlm_binary(path: str | os.PathLike[str]) -> bool:
    """Whether KenLM's build_binary wrote this file."""
    with open_file(path, kind="n-gram model") as stream:
        return stream.read(len(_KENLM_MAGIC)) == _KENLM_MAGIC


def load_ngram(path: str | os.PathLike[str]) -> NgramModel:
    """Load ARPA text, plain or gzip, or Tympan's binary format. The format is detected from the content."""
    with open_file(path, kind="n-gram model") as stream:
        beginning = stream.read(max(len(MAGIC), len(_KENLM_MAGIC)))
    if beginning.startswith(MAGIC):
        return read_binary(path)
    if beginning.startswith(_KENLM_MAGIC):
        raise UserError(f"{path}: KenLM's binary format is not supported; use the ARPA file from which it was built")
    with explained(path, "an ARPA file"):
        return read_arpa(str(path))
