"""Make ESPnet1's dictionary (units.txt) and ESPnet2's token list from a Kaldi `text` file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tympan.config import argument, option, parse_args


@dataclass(frozen=True)
class Options:
    text: list[Path] = argument(help="Kaldi `text` files: utterance id and sentence per line")
    output: Path = option(
        help="output dictionary: `token id` per line; <unk> is 1, and 0 is reserved for the CTC blank"
    )
    token_list: Path | None = option(None, help="also write the tokens as an ESPnet2 token list")
    token_type: Literal["char", "word"] = option("char", help="token type")
    non_linguistic_symbols: Path | None = option(None, help="file of symbols that are never split")
    cleaner: list[str] = option([], help="text cleaners to apply before tokenization: remove_spaces, lowercase, ...")
    cutoff: int = option(0, help="drop tokens that occur this many times or fewer", least=0)
    check: list[Path] = option([], help="other `text` file to report the OOV rate of; may be repeated")


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_args(Options, argv, prog="tympan make_dict", description=__doc__)

    from collections import Counter

    from tympan.text.cleaner import TextCleaner
    from tympan.text.counting import find_oov, opened_text, tokenized_lines
    from tympan.text.tokenizer import build_tokenizer
    from tympan.text.vocabulary import Vocabulary, vocabulary_from_counts, write_token_list, write_units

    tokenizer = build_tokenizer(options.token_type, non_linguistic_symbols=options.non_linguistic_symbols)
    cleaner = TextCleaner(options.cleaner)

    def counted(paths: Sequence[Path]) -> Counter[str]:
        counts: Counter[str] = Counter()
        for path in paths:
            with opened_text(path) as source:
                for tokens in tokenized_lines(source, tokenizer, cleaner=cleaner, field="2-", delimiter=None):
                    counts.update(tokens)
        return counts

    counts = counted(options.text)
    vocabulary = Vocabulary(vocabulary_from_counts(counts, order="sorted", cutoff=options.cutoff))
    write_units(vocabulary, options.output)
    if options.token_list is not None:
        write_token_list(vocabulary, options.token_list)
    print(f"{options.output}: {len(vocabulary) - 2:,} tokens, {len(vocabulary):,} with CTC blank and end-of-sentence")
    print(find_oov(counts, vocabulary.tokens))
    for path in options.check:
        print(f"{path}: {find_oov(counted([path]), vocabulary.tokens)}")
    return 0


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
