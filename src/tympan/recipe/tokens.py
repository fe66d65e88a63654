"""Token types: their files, the command options they need, and the dictionary of stage 2."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, Protocol

from tympan.data.kaldi_dir import read_table
from tympan.decode.search import SearchKind
from tympan.errors import UserError
from tympan.recipe.corpus import DATA, Corpus
from tympan.recipe.options import RecipeOptions
from tympan.recipe.stage import Step
from tympan.runtime.atomic import atomic_write
from tympan.text.lexicon import Lexicon, read_lexicon
from tympan.text.sentencepiece import piece_tokens, train_sentencepiece
from tympan.text.tokenizer import Tokenizer, build_tokenizer
from tympan.text.vocabulary import UNK, Vocabulary, vocabulary_from_counts, write_token_list, write_units

TYPICAL_SIZE = 1000
PHONES = 100
"""Number of tokens for the estimate, if nothing better is known."""
MOST_MISSING = 0.5
"""Share of the training words that a lexicon may lack."""
SHOWN_WORDS = 10


class Tokens(Protocol):
    """A token type, as the stages see it. These defaults are right for tokens that are counted in the text."""

    @property
    def kind(self) -> str:
        """The value of --token_type."""
        ...

    @property
    def name(self) -> str:
        """A name that differs if the tokens of the same text differ."""
        return self.kind

    @property
    def directory(self) -> Path:
        return DATA / f"lang_{self.name}"

    @property
    def token_list(self) -> Path:
        return self.directory / "tokens.txt"

    @property
    def needs(self) -> list[Path]:
        """Files besides the text that affect its tokens."""
        return []

    @property
    def makes(self) -> list[Path]:
        """Files besides the token list that the dictionary step writes."""
        return []

    @property
    def settings(self) -> Mapping[str, object]:
        """Settings that affect the dictionary, besides the text and `needs`."""
        return {"token_type": self.kind, "nbpe": None}

    @property
    def is_ready(self) -> bool:
        """Whether `tokenizer` can be used already."""
        return True

    def tokenizer(self) -> Tokenizer:
        return build_tokenizer(self.kind)

    def find(self, sentences: Sequence[str], text: Path) -> list[str]:
        """The token list of the sentences, which come from the file `text`."""
        tokenizer = self.tokenizer()
        return _counted(Counter(token for sentence in sentences for token in tokenizer.text2tokens(sentence)), text)

    def check_text(self, sentences: Sequence[str], text: Path) -> None:
        """UserError if the tokens cannot represent the training text."""
        return

    def report(self, sentences: Sequence[str], text: Path) -> None:
        """Print the words of the sentences that the tokens do not cover. The sentences come from the file `text`."""
        return

    def training_arguments(self) -> list[str]:
        """Options for asr_train and lm_train."""
        return ["--token_type", self.kind, "--token_list", str(self.token_list)]

    def decoding_arguments(self) -> list[str]:
        """Options for asr_inference and pack."""
        return []

    @property
    def ngram_settings(self) -> Mapping[str, object]:
        """Settings that affect the n-gram text, besides the tokens."""
        return {}

    def ngram_units(self) -> Callable[[str], Sequence[str]]:
        """The function that splits a sentence into the units of the n-gram."""
        return self.tokenizer().text2tokens

    def expected_size(self, corpus: Corpus) -> int:
        """Number of tokens before the dictionary is made."""
        return corpus.vocab_sizes.get(self.kind, TYPICAL_SIZE)

    def check_search(self, search: SearchKind | None, decode_config: str) -> None:
        """Raise a UserError for a search that cannot turn these tokens into text."""
        return


@dataclass(frozen=True)
class Characters(Tokens):
    """Characters, with ESPnet1's directory name."""

    kind = "char"

    @property
    def directory(self) -> Path:
        return DATA / "lang_1char"


@dataclass(frozen=True)
class Words(Tokens):
    """Words, separated by spaces."""

    kind = "word"


@dataclass(frozen=True)
class SentencePieces(Tokens):
    """A given number of subwords, from a model trained on the text."""

    size: int
    kind = "bpe"

    @property
    def name(self) -> str:
        return f"bpe{self.size}"

    @property
    def model(self) -> Path:
        return self.directory / "bpe.model"

    @property
    def makes(self) -> list[Path]:
        return [self.model]

    @property
    def settings(self) -> Mapping[str, object]:
        return {"token_type": self.kind, "nbpe": self.size}

    @property
    def is_ready(self) -> bool:
        return self.token_list.is_file()

    def tokenizer(self) -> Tokenizer:
        return build_tokenizer(self.kind, bpemodel=self.model)

    def find(self, sentences: Sequence[str], text: Path) -> list[str]:
        plain = self.directory / "train.txt"
        with atomic_write(plain) as stream:
            stream.writelines(f"{sentence}\n" for sentence in sentences)
        return piece_tokens(train_sentencepiece([plain], self.directory / "bpe", vocab_size=self.size))

    def training_arguments(self) -> list[str]:
        return [*super().training_arguments(), "--bpemodel", str(self.model)]

    def decoding_arguments(self) -> list[str]:
        return ["--bpemodel", str(self.model)]

    def expected_size(self, corpus: Corpus) -> int:
        return self.size


@dataclass(frozen=True)
class Phones(Tokens):
    """The phones of a pronunciation lexicon; decoding searches for its words."""

    lexicon: str
    """The path as typed, for the training configuration."""
    kind = "phn"

    @property
    def needs(self) -> list[Path]:
        return [Path(self.lexicon)]

    def tokenizer(self) -> Tokenizer:
        if not Path(self.lexicon).is_file():
            raise UserError(
                f"--lexicon: there is no file {self.lexicon}; token_type phn needs a pronunciation lexicon."
            )
        return build_tokenizer(self.kind, g2p_type=self.lexicon)

    def find(self, sentences: Sequence[str], text: Path) -> list[str]:
        require_words(read_lexicon(self.lexicon), sentences, text, self.lexicon)
        tokenizer = self.tokenizer()
        return _counted(Counter(token for line in sentences for token in tokenizer.text2tokens(line)), text)

    def check_text(self, sentences: Sequence[str], text: Path) -> None:
        require_words(read_lexicon(self.lexicon), sentences, text, self.lexicon)

    def report(self, sentences: Sequence[str], text: Path) -> None:
        line = describe_missing(*read_lexicon(self.lexicon).missing_words(sentences), self.lexicon)
        if line:
            print(f"    {text}: {line}")

    def training_arguments(self) -> list[str]:
        return [*super().training_arguments(), "--g2p", self.lexicon]

    @property
    def ngram_settings(self) -> Mapping[str, object]:
        return {"unit": "word"}

    def ngram_units(self) -> Callable[[str], Sequence[str]]:
        return read_lexicon(self.lexicon).text2units

    def expected_size(self, corpus: Corpus) -> int:
        return corpus.vocab_sizes.get(self.kind, PHONES)

    def check_search(self, search: SearchKind | None, decode_config: str) -> None:
        if search is None or "lexicon" not in search.needs:
            found = "no search" if search is None else f"search: {search.name}"
            raise UserError(
                f"--decode_config {decode_config}: token_type phn needs 'search: lexicon' to output words; "
                f"the file has {found}."
            )


def require_words(lexicon: Lexicon, sentences: Sequence[str], text: Path, name: str | Path) -> None:
    """UserError if the lexicon lacks most words of the training text, probably because it is for another language."""
    missing, total = lexicon.missing_words(sentences)
    if missing.total() > MOST_MISSING * total:
        raise UserError(
            f"{name} lacks {missing.total()} of the {total} words of {text}, such as {_most_frequent(missing, 3)}: "
            "check its language and its upper or lower case."
        )


def describe_missing(missing: Counter[str], total: int, lexicon: str | Path) -> str:
    """A line about words that become <unk>, or nothing if there are none."""
    if not missing:
        return ""
    share = 100 * missing.total() / total
    return (
        f"{missing.total()} of {total} words ({share:.1f} %) are not in {lexicon} and become <unk>: "
        f"{_most_frequent(missing, SHOWN_WORDS)}"
    )


def _most_frequent(words: Counter[str], number: int) -> str:
    """The most frequent words, and how many different others there are."""
    shown = ", ".join(word for word, _ in words.most_common(number))
    return shown if len(words) <= number else f"{shown} and {len(words) - number} more"


def find_tokens(options: RecipeOptions) -> Tokens:
    """The tokens selected by --token_type."""
    kinds: dict[Literal["char", "bpe", "word", "phn"], Tokens] = {
        "char": Characters(),
        "bpe": SentencePieces(options.nbpe),
        "word": Words(),
        "phn": Phones(options.lexicon),
    }
    return kinds[options.token_type]


def dictionary_step(tokens: Tokens, train_set: str, dev_set: str) -> Step:
    """Write the token list of the training set, as ESPnet2's file and as ESPnet1's dictionary."""
    text, dev = DATA / train_set / "text", DATA / dev_set / "text"
    units = tokens.directory / f"{train_set}_units.txt"
    return Step(
        "dictionary",
        partial(_write_dictionary, tokens, text, units, dev),
        [text, *tokens.needs],
        [units, tokens.token_list, *tokens.makes],
        tokens.settings,
    )


def _write_dictionary(tokens: Tokens, text: Path, units: Path, dev: Path) -> None:
    sentences = list(read_table(text).values())
    found = tokens.find(sentences, text)
    write_token_list(found, tokens.token_list)
    write_units(Vocabulary(found), units)
    print(f"    {tokens.token_list}: {len(found)} tokens")
    tokens.report(sentences, text)
    if dev.is_file():
        tokens.report(list(read_table(dev).values()), dev)


def _counted(counts: Mapping[str, int], text: Path) -> list[str]:
    known = {token: count for token, count in counts.items() if token != UNK}
    if not known:
        raise UserError(f"{text} contains no text, so no dictionary can be made.")
    return vocabulary_from_counts(known, order="sorted")
