"""Train a sentencepiece model (bpe or unigram) and write its token list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tympan.config import option, parse_args


@dataclass(frozen=True)
class Options:
    input: list[Path] = option(help="text file with one sentence per line; may be repeated")
    model_prefix: Path = option(help="prefix of the output files PREFIX.model and PREFIX.vocab")
    vocab_size: int = option(help="number of pieces", least=1, most=2**31 - 1)
    model_type: Literal["unigram", "bpe", "char", "word"] = option("unigram", help="model type")
    character_coverage: float = option(
        1.0, help="fraction of the characters of the text that the model covers", above=0, most=1
    )
    user_defined_symbols: list[str] = option([], help="symbol that is never split; may be repeated")
    input_sentence_size: int = option(
        100_000_000, help="maximum number of sentences to train on, sampled at random", least=0, most=2**31 - 1
    )
    seed: int = option(0, help="random seed for sampling sentences", least=0, most=2**32 - 1)
    field: str | None = option(
        None, help="columns of the text to use, counted from 1; such as 2- to skip the utterance ids"
    )
    token_list: Path | None = option(None, help="output token list (default: PREFIX.tokens.txt)")


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_args(Options, argv, prog="tympan spm_train", description=__doc__)

    from tympan.text.sentencepiece import piece_tokens, train_sentencepiece
    from tympan.text.vocabulary import write_token_list

    model = train_sentencepiece(
        options.input,
        options.model_prefix,
        vocab_size=options.vocab_size,
        model_type=options.model_type,
        character_coverage=options.character_coverage,
        user_defined_symbols=options.user_defined_symbols,
        input_sentence_size=options.input_sentence_size,
        seed=options.seed,
        field=options.field,
    )
    tokens = piece_tokens(model)
    token_list = options.token_list or model.with_name(f"{options.model_prefix.name}.tokens.txt")
    write_token_list(tokens, token_list)
    print(f"{model}\n{token_list}: {len(tokens):,} tokens")
    return 0


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
