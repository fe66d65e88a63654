"""Phonemes (`token_type: phn`): given in the text, looked up in a lexicon, or produced by an optional g2p package."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType

from tympan.errors import UserError
from tympan.text.lexicon import read_lexicon
from tympan.text.tokenizer import SPACE, Symbols, read_symbols

PACKAGES = {
    "g2p_en": "g2p_en",
    "g2p_en_no_space": "g2p_en",
    "pypinyin_g2p": "pypinyin",
    "pypinyin_g2p_phone": "pypinyin",
}

_ESPNET2 = ("pyopenjtalk", "espeak_ng", "g2pk", "korean_jaso", "g2p_is", "pypinyin_g2p_phone_without_prosody")
"""Beginnings of the names that only ESPnet2 has."""

WORD_BOUNDARY = "   "
"""Separates words in text whose phonemes are separated by single spaces, as in ESPnet2. It becomes the token ` `."""


class PhonemeTokenizer:
    """Converts text to phonemes. `g2p_type` is a g2p package, a lexicon file, or None if the text is phonemes."""

    def __init__(
        self,
        g2p_type: str | None = None,
        *,
        non_linguistic_symbols: Symbols = None,
        space_symbol: str = SPACE,
        remove_non_linguistic_symbols: bool = False,
    ) -> None:
        if g2p_type is not None and g2p_type not in PACKAGES and not Path(g2p_type).is_file():
            if g2p_type.startswith(_ESPNET2):
                raise UserError(
                    f"ESPnet2's g2p '{g2p_type}' is not supported; use a lexicon file with lines 'WORD P1 P2 ...'"
                )
            raise UserError(
                f"g2p '{g2p_type}': must be one of {', '.join(PACKAGES)}, or a lexicon file with lines "
                "'WORD P1 P2 ...', or null if the text is phonemes"
            )
        self.g2p_type = g2p_type
        self.space_symbol = space_symbol
        self.symbols = read_symbols(non_linguistic_symbols)
        self.removes_symbols = remove_non_linguistic_symbols
        self._g2p: Callable[[str], list[str]] | None = None
        self.lexicon = None if g2p_type is None or g2p_type in PACKAGES else read_lexicon(g2p_type)
        self._load()

    def text2words(self, line: str) -> list[tuple[str, int]] | None:
        """Return words with their number of tokens, if there is a lexicon."""
        if self.lexicon is None:
            return None
        words: list[tuple[str, int]] = []
        for part, is_symbol in self._split(line):
            if not is_symbol:
                words += [(word, len(phones)) for word, phones in self.lexicon.text2words(part)]
            elif not self.removes_symbols:
                words.append((part, 1))
        return words

    def text2tokens(self, line: str) -> list[str]:
        if self.g2p_type is None:
            words = [self._phones(word) for word in line.split(WORD_BOUNDARY)]
            return [token for word in words for token in (" ", *word)][1:]
        return [self.space_symbol if token == " " else token for token in self._phones(line)]

    def tokens2text(self, tokens: Iterable[str]) -> str:
        """Join phonemes without spaces, as in ESPnet2, or with spaces if they come from a lexicon.

        Phonemes can't be converted to the original text.
        """
        if self.lexicon is not None:
            return " ".join(tokens)
        return "".join(" " if token == self.space_symbol else token for token in tokens)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_g2p": None}

    def _phones(self, line: str) -> list[str]:
        tokens: list[str] = []
        for word, is_symbol in self._split(line):
            if not is_symbol:
                tokens += self._load()(word)
            elif not self.removes_symbols:
                tokens.append(word)
        return tokens

    def _split(self, line: str) -> list[tuple[str, bool]]:
        """Split into runs of text and single symbols, in order."""
        parts: list[tuple[str, bool]] = []
        run: list[str] = []
        for word in line.split():
            if word in self.symbols:
                if run:
                    parts.append((" ".join(run), False))
                    run = []
                parts.append((word, True))
            else:
                run.append(word)
        return [*parts, (" ".join(run), False)] if run else parts

    def _load(self) -> Callable[[str], list[str]]:
        if self._g2p is None:
            if self.lexicon is not None:
                self._g2p = self.lexicon.text2phones
            else:
                self._g2p = str.split if self.g2p_type is None else _g2p(self.g2p_type)
        return self._g2p


def _g2p(name: str) -> Callable[[str], list[str]]:
    try:
        package = importlib.import_module(PACKAGES[name])
    except ImportError as error:
        needed = f"g2p '{name}' needs an optional package: pip install {PACKAGES[name]}"
        raise UserError(f"{needed} ({error})") from None
    if name.startswith("g2p_en"):
        english = package.G2p()
        keeps_space = name == "g2p_en"
        return lambda text: [phone for phone in english(text) if keeps_space or phone != " "]

    def syllables(text: str) -> list[str]:
        # Text that is not Chinese is returned unchanged, including spaces.
        readings = package.pinyin(text, style=package.Style.TONE3)
        return [part for reading in readings for part in reading[0].split()]

    if name == "pypinyin_g2p":
        return syllables
    return lambda text: [part for syllable in syllables(text) for part in _initial_and_final(package, syllable)]


def _initial_and_final(package: ModuleType, syllable: str) -> list[str]:
    """Split `zhong1` into `zh` and `ong1`."""
    tone = syllable[-1] if syllable[-1:].isdigit() else ""
    plain = syllable[: len(syllable) - len(tone)]
    if not plain.isascii() or not plain.isalpha():
        return [syllable]
    initial = package.contrib.tone_convert.to_initials(plain, strict=True)
    final = package.contrib.tone_convert.to_finals(plain, strict=True)
    return [part for part in (initial, final + tone) if part and not part.isdigit()]
