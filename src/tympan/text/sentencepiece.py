"""BPE and unigram models of the sentencepiece library: use a model and train one."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tympan.errors import UserError
from tympan.files import read_bytes
from tympan.text.counting import opened_text, parse_field
from tympan.text.vocabulary import BLANK, SOS_EOS, UNK

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor


class BpeTokenizer:
    """Splits text into the pieces of a sentencepiece model. Each process loads the model at first use."""

    space_symbol: None = None

    def __init__(self, model: str | os.PathLike[str]) -> None:
        self.model = Path(model)
        if not self.model.is_file():
            raise UserError(f"{self.model}: no such sentencepiece model (bpemodel)")
        self._processor: SentencePieceProcessor | None = None

    def text2tokens(self, line: str) -> list[str]:
        pieces: list[str] = self._loaded().encode(line, out_type=str)
        return pieces

    def tokens2text(self, tokens: Iterable[str]) -> str:
        text: str = self._loaded().decode_pieces(list(tokens))
        return text

    def __getstate__(self) -> dict[str, object]:
        return {"model": self.model, "_processor": None}

    def _loaded(self) -> SentencePieceProcessor:
        if self._processor is None:
            self._processor = _load(self.model)
        return self._processor


def train_sentencepiece(
    inputs: Sequence[str | os.PathLike[str]],
    model_prefix: str | os.PathLike[str],
    *,
    vocab_size: int,
    model_type: str = "unigram",
    character_coverage: float = 1.0,
    user_defined_symbols: Sequence[str] = (),
    input_sentence_size: int = 100_000_000,
    seed: int = 0,
    field: str | None = None,
) -> Path:
    """Train PREFIX.model and PREFIX.vocab on text files with one sentence per line. Returns the path of the model.

    `field` selects columns, as in `tokenize_text` (`2-` skips the ids of a Kaldi text).
    """
    import sentencepiece

    missing = [f"{os.fspath(path)}: no such text file" for path in inputs if not Path(path).is_file()]
    if missing:
        raise UserError("\n".join(missing))
    sentences = _sentences(inputs, field)
    first = next(sentences, None)
    if first is None:
        columns = "" if field is None else f" in the columns that --field {field} selects"
        raise UserError(f"--input {' '.join(str(path) for path in inputs)}: there is no text{columns}")
    prefix = Path(model_prefix)
    prefix.parent.mkdir(parents=True, exist_ok=True)
    sentencepiece.set_random_generator_seed(seed)
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=itertools.chain([first], sentences),
            model_prefix=os.fspath(prefix),
            vocab_size=vocab_size,
            model_type=model_type,
            character_coverage=character_coverage,
            user_defined_symbols=list(user_defined_symbols),
            input_sentence_size=input_sentence_size,
            shuffle_input_sentence=True,
            minloglevel=2,
        )
    except (RuntimeError, OSError, ValueError) as error:
        chosen = f"vocab_size {vocab_size}, model_type {model_type}, character_coverage {character_coverage:g}"
        if user_defined_symbols:
            chosen += f", user_defined_symbols {' '.join(user_defined_symbols)}"
        raise UserError(f"sentencepiece could not train {prefix}.model with {chosen}: {_reason(error)}") from None
    return prefix.with_name(f"{prefix.name}.model")


def _sentences(paths: Sequence[str | os.PathLike[str]], field: str | None) -> Iterator[str]:
    columns = None if field is None else parse_field(field)
    for path in paths:
        with opened_text(Path(path)) as source:
            for line in source:
                sentence = line.strip() if columns is None else " ".join(line.split()[columns])
                if sentence:
                    yield sentence


def piece_tokens(model: str | os.PathLike[str]) -> list[str]:
    """Return the token list of a model, in the order of ESPnet2's recipes."""
    processor = _load(Path(model))
    special = {UNK, "<s>", "</s>", BLANK, SOS_EOS}
    pieces = (processor.id_to_piece(number) for number in range(processor.get_piece_size()))
    return [BLANK, UNK, *(piece for piece in pieces if piece not in special), SOS_EOS]


def _load(model: Path) -> SentencePieceProcessor:
    import sentencepiece

    content = read_bytes(model, kind="sentencepiece model")
    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=content)
        # A damaged piece is not UTF-8, which would be noticed only when it is used.
        processor.id_to_piece(list(range(processor.get_piece_size())))
        return processor
    except Exception as error:  # of a library in C++: its errors have several types
        raise UserError(f"{model}: not a readable sentencepiece model: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    """Return the message without its prefix, a position in the source code of the library."""
    return str(error).strip().rpartition("] ")[2] or str(error)
