"""Score sentences with an n-gram language model: log10 probabilities and perplexity, like KenLM's query."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tympan.config import argument, option, parse_args
from tympan.errors import UserError


@dataclass(frozen=True)
class Options:
    model: Path = argument(help="ARPA file (plain or gzip), or binary file written by ngram_train")
    text: str = argument(
        "-", help="text file, plain or gzip: one sentence per line, tokens separated by spaces; -: standard input"
    )
    sentences: bool = option(True, help="print the log10 probability of each sentence; false: print only the summary")


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_args(Options, argv, prog="tympan ngram_query", description=__doc__)

    import torch

    from tympan.decode.ngram_sentences import SentenceScore, score_sentences
    from tympan.text.ngram.load import load_ngram

    total = SentenceScore(0.0, 0.0, 0, 0)
    for score in score_sentences(load_ngram(options.model), _read(options.text), device=torch.device("cpu")):
        total += score
        if options.sentences:
            print(f"{score.total:.6f} {score.unknown}")
    if not total.tokens:
        raise UserError(f"{options.text}: the input has no lines to score")
    print(f"Perplexity including OOVs: {10 ** (-total.total / total.tokens):.6g}")
    if total.tokens > total.unknown:
        print(f"Perplexity excluding OOVs: {10 ** (-total.known / (total.tokens - total.unknown)):.6g}")
    print(f"OOVs: {total.unknown}")
    print(f"Tokens: {total.tokens}")
    return 0


def _read(path: str) -> Iterator[list[str]]:
    from tympan.text.ngram.files import open_bytes

    with open_bytes(path) as stream:
        for number, line in enumerate(stream, start=1):
            try:
                line.decode()
            except UnicodeDecodeError:
                raise UserError(
                    f"{path}:{number}: not UTF-8 text; convert the file to UTF-8, for example with iconv"
                ) from None
            yield [word.decode() for word in line.split()]


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
