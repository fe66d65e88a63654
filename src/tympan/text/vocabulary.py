"""The token list, which maps tokens to ids, in ESPnet2's and ESPnet1's file formats."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tympan.errors import UserError
from tympan.files import read_text
from tympan.runtime.atomic import atomic_write

BLANK = "<blank>"
UNK = "<unk>"
SOS_EOS = "<sos/eos>"


class Vocabulary:
    """Tokens by id. In ESPnet2's order, `<blank>` is first, then `<unk>` and the tokens, and `<sos/eos>` is last.

    With `unk_symbol` None, the list may lack the unknown token, and converts no tokens to ids.
    """

    def __init__(self, tokens: Iterable[str], *, unk_symbol: str | None = UNK, source: str = "token list") -> None:
        self.tokens: tuple[str, ...] = tuple(tokens)
        self.unk_symbol = unk_symbol
        self._ids: dict[str, int] = {token: number for number, token in enumerate(self.tokens)}
        mistakes = [f"{source}: token '{token}' appears {n} times" for token, n in _repeated(self.tokens).items()]
        if not self.tokens:
            mistakes.append(f"{source}: has no tokens")
        elif unk_symbol is not None and unk_symbol not in self._ids:
            mistakes.append(
                f"{source}: the unknown token '{unk_symbol}' is missing; add it, usually as the second line, or set "
                "preprocessor_conf unk_symbol to the name that it has there"
            )
        if mistakes:
            raise UserError("\n".join(mistakes))

    def __len__(self) -> int:
        return len(self.tokens)

    def __contains__(self, token: object) -> bool:
        return token in self._ids

    @property
    def unk_id(self) -> int:
        assert self.unk_symbol is not None, "the list was read to convert no text"
        return self._ids[self.unk_symbol]

    @property
    def blank_id(self) -> int:
        """Id of CTC's blank: `<blank>`, or 0 if the list has no such token (as ESPnet2 assumes)."""
        return self._ids.get(BLANK, 0)

    @property
    def eos_id(self) -> int:
        """Id of the start and end of a sentence: `<sos/eos>`, or the last token (as ESPnet2 assumes)."""
        return self._ids.get(SOS_EOS, len(self.tokens) - 1)

    @property
    def sos_id(self) -> int:
        return self.eos_id

    def tokens2ids(self, tokens: Iterable[str]) -> list[int]:
        """Return the ids of these tokens. Unknown tokens become `unk_id`."""
        unk, ids = self.unk_id, self._ids
        return [ids.get(token, unk) for token in tokens]

    def ids2tokens(self, ids: Iterable[int]) -> list[str]:
        return [self.tokens[number] for number in ids]


def read_token_list(path: str | os.PathLike[str], *, unk_symbol: str | None = UNK) -> Vocabulary:
    """Read ESPnet2's tokens.txt (one token per line, ids count from 0) or ESPnet1's units.txt (`token id`)."""
    lines = _read_lines(Path(path))
    if lines and all(_is_unit(line) for line in lines):
        return Vocabulary(_units_to_tokens(lines, source=str(path)), unk_symbol=unk_symbol, source=str(path))
    return Vocabulary(lines, unk_symbol=unk_symbol, source=str(path))


def write_token_list(vocabulary: Vocabulary | Sequence[str], path: str | os.PathLike[str]) -> None:
    """Write one token per line, as ESPnet2's `--token_list` expects it."""
    tokens = vocabulary.tokens if isinstance(vocabulary, Vocabulary) else vocabulary
    with atomic_write(path) as stream:
        stream.writelines(f"{token}\n" for token in tokens)


def write_units(vocabulary: Vocabulary, path: str | os.PathLike[str]) -> None:
    """Write ESPnet1's dictionary: lines `token id`, without `<blank>` (0) and the end of sentence (last)."""
    hidden = {vocabulary.blank_id, vocabulary.eos_id}
    if hidden != {0, len(vocabulary) - 1}:
        raise UserError(f"{path}: units.txt needs '{BLANK}' as the first token and '{SOS_EOS}' as the last")
    with atomic_write(path) as stream:
        stream.writelines(f"{token} {n}\n" for n, token in enumerate(vocabulary.tokens) if n not in hidden)


def vocabulary_from_counts(
    counts: Mapping[str, int],
    *,
    order: str = "frequency",
    cutoff: int = 0,
    vocabulary_size: int = 0,
    add_symbol: Sequence[str] = (f"{BLANK}:0", f"{UNK}:1", f"{SOS_EOS}:-1"),
) -> list[str]:
    """Choose the tokens of a list as ESPnet2's tokenize_text does.

    Keep tokens that occur more than `cutoff` times, the most frequent first (ties in order of appearance). With `order`
    "sorted", sort them by code point, as in ESPnet1's dictionary. Entries of `add_symbol` are `SYMBOL:POSITION`, where
    -1 is the last position. The list has at most `vocabulary_size` tokens (0: no limit), including added symbols.
    """
    kept = sorted((token for token, n in counts.items() if n > cutoff), key=lambda token: -counts[token])
    symbols = [_parse_symbol(entry) for entry in add_symbol]
    if vocabulary_size > 0:
        if vocabulary_size < len(symbols):
            raise UserError(
                f"vocabulary_size {vocabulary_size} is less than the number of added symbols, {len(symbols)}"
            )
        kept = kept[: vocabulary_size - len(symbols)]
    if order == "sorted":
        kept.sort()
    kept = [token for token in kept if token not in {symbol for symbol, _ in symbols}]
    for symbol, position in symbols:
        kept.insert(position if position >= 0 else len(kept) + 1 + position, symbol)
    return kept


def _parse_symbol(entry: str) -> tuple[str, int]:
    symbol, _, position = entry.rpartition(":")
    if not symbol.strip() or re.fullmatch(r"\s*-?[0-9]{1,9}\s*", position) is None:
        raise UserError(
            "add_symbol and add_nonsplit_symbol: expected SYMBOL:POSITION such as '<blank>:0' or '<sos/eos>:-1', found "
            f"'{entry}'"
        )
    return symbol.strip(), int(position)


def _repeated(tokens: Sequence[str]) -> dict[str, int]:
    return {token: n for token, n in Counter(tokens).items() if n > 1}


def _read_lines(path: Path) -> list[str]:
    # Only the line end is cut: a token may be any character, U+3000 and U+2028 too.
    lines = read_text(path, kind="token list").split("\n")
    return lines[:-1] if lines and lines[-1] == "" else lines


_MOST_DIGITS = 10


def _is_unit(line: str) -> bool:
    token, _, number = line.rpartition(" ")
    return bool(token) and number.isascii() and number.isdigit() and len(number) < _MOST_DIGITS


def _units_to_tokens(lines: Sequence[str], *, source: str) -> list[str]:
    numbered: dict[int, str] = {}
    for place, line in enumerate(lines, 1):
        token, _, number = line.rpartition(" ")
        if int(number) in numbered:
            raise UserError(f"{source}:{place}: id {number} is given twice ('{numbered[int(number)]}' and '{token}')")
        numbered[int(number)] = token
    if set(numbered) != set(range(1, len(lines) + 1)):
        raise UserError(
            f"{source}: the ids of a units file must be 1 to the number of lines, without gaps (0 is <blank>)"
        )
    return [BLANK, *(numbered[n] for n in range(1, len(lines) + 1)), SOS_EOS]
