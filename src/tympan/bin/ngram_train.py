"""Estimate an n-gram language model like KenLM's lmplz: ARPA text and a memory-mapped binary."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tympan.config import argument, option, parse_args
from tympan.errors import UserError
from tympan.runtime.memory import memory_bytes

if TYPE_CHECKING:
    from tympan.text.ngram.corpus import Corpus
    from tympan.text.ngram.kneser_ney import Estimate

_UNITS = {"": 1 << 10, "b": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True, kw_only=True)
class Options:
    text: str = argument(
        "-", help="text file, plain or gzip: one sentence per line, tokens separated by spaces; -: standard input"
    )
    order: int = option(help="order of the model: length of the longest n-grams", short="-o", least=1)
    arpa: Path | None = option(
        None, help="output ARPA file (.gz: compressed); default: standard output, unless --binary is given"
    )
    binary: Path | None = option(None, help="output binary file, which loads faster than ARPA")
    discount_fallback: list[float] | None = option(
        None,
        help="discounts to use for orders where they can't be estimated: three numbers; 0.5 1 1.5 if the option has "
        "no value; null: report an error",
        least=0,
    )
    prune: list[int] = option(
        [],
        help="count thresholds per order, such as 0 0 1: drop n-grams that occur this many times or fewer; the last "
        "threshold also applies to all higher orders",
        least=0,
    )
    skip_symbols: bool = option(
        False, help="treat <s>, </s> and <unk> in the text as spaces instead of raising an error"
    )
    memory: str = option(
        "256M", help="memory for sorting, such as 1G or 20%; larger data is sorted in temporary files", short="-S"
    )
    temp_dir: Path | None = option(None, help="directory for temporary files (default: the system's)", short="-T")


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_args(Options, argv, prog="tympan ngram_train", description=__doc__)
    _check(options)

    from tympan.runtime.log import setup_logging
    from tympan.text.ngram.arpa_writer import write_arpa, write_arpa_lines
    from tympan.text.ngram.binary import write_binary
    from tympan.text.ngram.corpus import read_corpus
    from tympan.text.ngram.kneser_ney import FALLBACK_DISCOUNTS, estimate
    from tympan.text.ngram.scratch import Scratch

    setup_logging()
    scratch = Scratch(memory_bytes=_bytes(options.memory), folder=options.temp_dir)
    corpus = read_corpus(options.text, scratch=scratch, skip_symbols=options.skip_symbols)
    _tell_corpus(options.text, corpus)
    fallback = None if options.discount_fallback is None else options.discount_fallback or FALLBACK_DISCOUNTS
    found = estimate(corpus, order=options.order, scratch=scratch, prune=options.prune, fallback=fallback)
    _tell_estimate(found)
    if options.arpa is not None:
        write_arpa(found.model, options.arpa)
    if options.binary is not None:
        write_binary(found.model, options.binary)
    elif options.arpa is None:
        write_arpa_lines(found.model, sys.stdout.buffer)
    return 0


def _check(options: Options) -> None:
    fallback = options.discount_fallback
    if fallback and (len(fallback) != 3 or not all(0 <= d <= n for n, d in enumerate(fallback, start=1))):
        raise UserError(
            "--discount_fallback: expected three numbers of at most 1, 2 and 3 (or none, for 0.5 1 1.5), "
            f"found {' '.join(map(str, fallback))}"
        )
    if options.temp_dir is not None and not options.temp_dir.is_dir():
        raise UserError(f"--temp_dir: {options.temp_dir} is not a directory")


def _bytes(text: str) -> int:
    """GNU sort's notation, as for lmplz -S. The default unit is K."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([bKMGT%]?)", text.strip())
    if not found:
        raise UserError(f"--memory: expected a number and a unit (b, K, M, G, T, %), such as 500M, found '{text}'")
    if found[2] == "%":
        if float(found[1]) > 100:
            raise UserError(f"--memory: expected at most 100% of the memory, found '{text}'")
        return int(memory_bytes() * float(found[1]) / 100)
    return int(float(found[1]) * _UNITS[found[2]])


def _tell_corpus(path: str, corpus: Corpus) -> None:
    logging.info(
        f"{path}: {corpus.sentences:,} sentences, {len(corpus.tokens) - corpus.sentences:,} tokens, "
        f"{len(corpus.words) - 3:,} different"
    )
    if corpus.empty_sentences:
        logging.warning(f"{path}: {corpus.empty_sentences:,} empty lines are counted as empty sentences, as in lmplz")


def _tell_estimate(found: Estimate) -> None:
    counts = found.model.counts
    if len(counts) < len(found.discounts):
        logging.warning(f"no {len(counts) + 1}-gram is left after pruning: the model has order {len(counts)}")
    for n, (count, discounts) in enumerate(zip(counts, found.discounts, strict=False), start=1):
        note = " (the fallback)" if n in found.fallback_orders else ""
        shown = " ".join(f"{value:.4f}" for value in discounts)
        logging.info(f"{n}-grams: {count:,}, discounts {shown}{note}")


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
