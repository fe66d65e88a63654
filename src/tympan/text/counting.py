"""Count the tokens of a text file, and those that are not in the token list."""

from __future__ import annotations

import io
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tympan.errors import UserError
from tympan.files import open_file
from tympan.text.cleaner import TextCleaner
from tympan.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class OovReport:
    """Tokens that are not in a token list."""

    total: int
    missing: Mapping[str, int]

    @property
    def rate(self) -> float:
        return sum(self.missing.values()) / self.total if self.total else 0.0

    def __str__(self) -> str:
        text = f"OOV rate {self.rate:.2%}: {sum(self.missing.values()):,} of {self.total:,} tokens"
        if self.missing:
            shown = sorted(self.missing.items(), key=lambda item: (-item[1], item[0]))
            text += f", {len(shown):,} distinct: " + ", ".join(f"{token} ({n})" for token, n in shown[:10])
            text += ", ..." if len(shown) > 10 else ""
        return text


def tokenized_lines(
    lines: Iterable[str], tokenizer: Tokenizer, *, cleaner: TextCleaner, field: str | None, delimiter: str | None
) -> Iterator[list[str]]:
    """Yield the tokens of each line. `field` selects columns (`2-` skips the utterance id)."""
    columns = None if field is None else parse_field(field)
    for line in lines:
        line = line.rstrip("\r\n").rstrip()
        if columns is not None:
            line = (delimiter or " ").join(line.split(delimiter)[columns])
        yield tokenizer.text2tokens(cleaner(line))


def find_oov(counts: Mapping[str, int], known: Collection[str]) -> OovReport:
    """Compare the token counts of a text with a token list."""
    listed = frozenset(known)
    return OovReport(sum(counts.values()), {token: n for token, n in counts.items() if token not in listed})


def parse_field(field: str) -> slice:
    """Parse columns as in `cut -f`, counted from 1: `2`, `2-`, `-3`, `2-4`."""
    first, dash, last = field.partition("-")
    numbers = [part.strip() for part in (first, last) if part.strip()]
    if not numbers or not all(part.isdigit() and int(part) > 0 for part in numbers):
        raise UserError(f"--field: expected columns counted from 1, such as '2-', '2-5' or '-5', found '{field}'")
    start = int(first) - 1 if first.strip() else 0
    if not dash:
        return slice(start, start + 1)
    return slice(start, int(last) if last.strip() else None)


@contextmanager
def opened_text(path: str | Path) -> Iterator[IO[str]]:
    """Open a UTF-8 file, or standard input for `-`."""
    if str(path) == "-":
        yield sys.stdin
        return
    try:
        with io.TextIOWrapper(open_file(path, kind="text file"), encoding="utf-8") as stream:
            yield stream
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text: {error.reason} at byte {error.start}") from None
