"""Tokenize a text, or make a token list from it (ESPnet2's tokenize_text)."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from tympan.config import option, parse_args

VOCABULARY = "token list"


@dataclass(frozen=True)
class Options:
    input: str = option(help="input text file; -: standard input", short="-i")
    output: str = option("-", help="output file; -: standard output", short="-o")
    field: str | None = option(
        None,
        help="columns of the text to use, counted from 1, such as 2- to skip the utterance ids; null: all",
        short="-f",
    )
    token_type: Literal["char", "word", "bpe", "phn"] = option("char", help="token type", short="-t")
    delimiter: str | None = option(None, help="separator of columns and words; null: whitespace", short="-d")
    space_symbol: str = option("<space>", help="token that represents a space")
    bpemodel: Path | None = option(None, help="sentencepiece model, for token_type bpe")
    non_linguistic_symbols: Path | None = option(None, help="file of symbols that are never split")
    remove_non_linguistic_symbols: bool = option(
        False, help="remove the symbols of non_linguistic_symbols from the text"
    )
    cleaner: list[str] | None = option(
        None, help="text cleaners to apply before tokenizing: lowercase, remove_spaces, tacotron, ..."
    )
    g2p: str | None = option(
        None, help="for token_type phn: a grapheme-to-phoneme package, or a pronunciation lexicon file"
    )
    write_vocabulary: bool = option(
        False, help="write the token list instead of the tokens of each line", group=VOCABULARY
    )
    vocabulary_size: int = option(
        0, help="maximum number of tokens in the list, including added symbols; 0: no limit", group=VOCABULARY, least=0
    )
    cutoff: int = option(0, help="drop tokens that occur this many times or fewer", group=VOCABULARY, least=0)
    add_symbol: list[str] = option(
        [],
        help="SYMBOL:POSITION to add to the list, such as <blank>:0 or <sos/eos>:-1; may be repeated",
        group=VOCABULARY,
    )
    add_nonsplit_symbol: list[str] = option(
        [],
        help="SYMBOL:POSITION to add to the list and never split in the text, for token_type char; may be repeated",
        group=VOCABULARY,
    )
    token_list: Path | None = option(None, help="token list; report the number of tokens in the text that it lacks")
    log_level: Literal["CRITICAL", "ERROR", "WARNING", "INFO", "DEBUG", "NOTSET"] = option("INFO", help="logging level")


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_args(Options, argv, prog="tympan tokenize_text", description=__doc__)

    from tympan.runtime.log import setup_logging
    from tympan.text.cleaner import TextCleaner
    from tympan.text.counting import find_oov, opened_text, tokenized_lines
    from tympan.text.tokenizer import build_tokenizer
    from tympan.text.vocabulary import read_token_list, vocabulary_from_counts

    setup_logging(options.log_level)
    tokenizer = build_tokenizer(
        options.token_type,
        bpemodel=options.bpemodel,
        non_linguistic_symbols=options.non_linguistic_symbols,
        remove_non_linguistic_symbols=options.remove_non_linguistic_symbols,
        space_symbol=options.space_symbol,
        delimiter=options.delimiter,
        g2p_type=options.g2p,
        nonsplit_symbols=options.add_nonsplit_symbol,
    )
    cleaner = TextCleaner(options.cleaner)
    known = None if options.token_list is None else read_token_list(options.token_list).tokens
    counts: Counter[str] = Counter()
    with opened_text(options.input) as source, _opened(options.output) as out:
        lines = tokenized_lines(source, tokenizer, cleaner=cleaner, field=options.field, delimiter=options.delimiter)
        for tokens in lines:
            counts.update(tokens)
            if not options.write_vocabulary:
                out.write(" ".join(tokens) + "\n")
        if options.write_vocabulary:
            chosen = vocabulary_from_counts(
                counts,
                cutoff=options.cutoff,
                vocabulary_size=options.vocabulary_size,
                add_symbol=[*options.add_symbol, *options.add_nonsplit_symbol],
            )
            out.writelines(f"{token}\n" for token in chosen)
            known = known or tuple(chosen)
    if known is not None:
        print(find_oov(counts, known), file=sys.stderr)
    return 0


def _opened(output: str) -> AbstractContextManager[IO[str]]:
    if output == "-":
        return nullcontext(sys.stdout)
    from tympan.runtime.atomic import atomic_write

    return atomic_write(output)


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
