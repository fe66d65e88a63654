"""Read references and hypotheses from Kaldi `text` and sclite `.trn` files, split into the units to score."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from tympan.errors import UserError
from tympan.files import read_text
from tympan.score.alternatives import Token, parse_choices

Unit = Literal["char", "word", "token", "mixed"]
RATE_NAMES: dict[Unit, str] = {"char": "CER", "word": "WER", "token": "TER", "mixed": "MER"}
"""The name of the error rate of each unit (tokens and mixed units have no established one)."""

SPACE = "<space>"
COMMENT = ";;"
_TRN_LINE = re.compile(r"^(?P<text>.*)\((?P<id>[^()\s]+)\)\s*$")
_SYMBOL = re.compile(r"<[^<>\s]+>")
_FULL_WIDTH_MARKS = "\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff9f"  # and half-width katakana
_CJK = rf"\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff{_FULL_WIDTH_MARKS}\U00020000-\U0003ffff"
_MIXED = re.compile(rf"<[^<>\s]+>|[{_CJK}]|[^{_CJK}\s<]+|<")


@dataclass(frozen=True)
class Transcript:
    """The reference or hypothesis of one utterance."""

    id: str
    speaker: str
    tokens: tuple[Token, ...]


def read_transcripts(
    path: str | Path,
    *,
    unit: Unit | None = None,
    utt2spk: dict[str, str] | None = None,
    remove_space: bool = False,
    removed_symbols: Collection[str] = (),
) -> list[Transcript]:
    """Every utterance of a file, in file order.

    `unit` None takes the tokens between spaces. In a Kaldi text scored per character, a space is the
    token `<space>` (as in ESPnet2) unless `remove_space`, which also removes `<space>` from a .trn file. In a .trn
    file the spaces only separate tokens, `{ a / b }` is a choice, `@` is nothing, and a line that begins with `;;` is a
    comment.
    """
    path = Path(path)
    is_trn = path.suffix == ".trn"
    if remove_space:
        removed_symbols = {*removed_symbols, SPACE}
    transcripts: list[Transcript] = []
    seen: dict[str, int] = {}
    faults: list[str] = []
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip() or (is_trn and line.startswith(COMMENT)):
            continue
        entry = _split_trn(line) if is_trn else _split_kaldi(line)
        if entry is None:
            faults.append(f"{path}:{number}: no '(utterance-id)' at the end of the line")
            continue
        utterance, text = entry
        if utterance in seen:
            faults.append(f"{path}:{number}: utterance '{utterance}' is already on line {seen[utterance]}")
            continue
        seen[utterance] = number
        split = partial(_kept_units, unit=unit, keep_space=not (remove_space or is_trn), removed=removed_symbols)
        tokens = parse_choices(text, split) if is_trn else tuple(split(text))
        if tokens is None:
            faults.append(f"{path}:{number}: '{{' without a matching '}}'")
            continue
        transcripts.append(
            Transcript(utterance, _speaker_of(utterance, utt2spk, separators="-_" if is_trn else "-"), tokens)
        )
    if faults:
        raise UserError("\n".join(faults))
    if not transcripts:
        raise UserError(f"{path}: the file contains no utterances")
    return transcripts


def trn_line(utterance: str, tokens: Sequence[str]) -> str:
    """One line of a .trn file. A leading space keeps a text that begins with `;;` from being a comment."""
    text = " ".join(tokens)
    return f"{' ' if text.startswith(COMMENT) else ''}{text}\t({utterance})"


def is_trn_readable(utterance: str, tokens: Sequence[str]) -> bool:
    """Whether the line is read back unchanged: the format can't represent `{`, or a single `@`, as words."""
    entry = _split_trn(trn_line(utterance, tokens))
    return entry is not None and entry[0] == utterance and parse_choices(entry[1], str.split) == tuple(tokens)


def split_units(text: str, unit: Unit | None, *, keep_space: bool = True) -> list[str]:
    """Split a text into the units to score. A symbol such as <noise> is always one unit."""
    if unit == "char":
        words = [_characters(word) for word in text.split()]
        separator = [SPACE] if keep_space else []
        return [token for n, word in enumerate(words) for token in (separator if n else []) + word]
    if unit == "mixed":
        return _MIXED.findall(text)
    return text.split()


def _kept_units(text: str, *, unit: Unit | None, keep_space: bool, removed: Collection[str]) -> list[str]:
    """Remove the symbols, both as separate words (with one space) and inside a word."""
    if removed:
        text = " ".join(word for word in text.split() if word not in removed)
    return [token for token in split_units(text, unit, keep_space=keep_space) if token not in removed]


def read_utt2spk(path: Path) -> dict[str, str]:
    """The speaker of each utterance."""
    speakers = {}
    for number, line in enumerate(read_lines(path), start=1):
        columns = line.split()
        if columns and len(columns) != 2:
            raise UserError(f"{path}:{number}: {len(columns)} columns, expected 'utterance speaker'")
        if columns:
            speakers[columns[0]] = columns[1]
    return speakers


def _characters(word: str) -> list[str]:
    tokens: list[str] = []
    position = 0
    for symbol in _SYMBOL.finditer(word):
        tokens += [*word[position : symbol.start()], symbol.group()]
        position = symbol.end()
    return tokens + list(word[position:])


def _split_trn(line: str) -> tuple[str, str] | None:
    match = _TRN_LINE.match(line)
    return (match["id"], match["text"]) if match else None


def _split_kaldi(line: str) -> tuple[str, str]:
    utterance, _, text = line.strip().partition(" ")
    if "\t" in utterance:
        utterance, _, text = line.strip().partition("\t")
    return utterance, text


def _speaker_of(utterance: str, utt2spk: dict[str, str] | None, *, separators: str) -> str:
    """From utt2spk; else the id up to its first '-' (as sclite, which then tries '_'); else 'all'."""
    if utt2spk is not None and utterance in utt2spk:
        return utt2spk[utterance]
    for separator in separators:
        speaker, found, _ = utterance.partition(separator)
        if found and speaker:
            return speaker
    return "all"


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 file."""
    if path.is_dir():
        raise UserError(f"{path}: is a directory; give the file in it, such as {path / 'text'}")
    # str.splitlines would also split at U+2028, U+0085 and the like, which a transcript may contain.
    return read_text(path, encoding="utf-8-sig").split("\n")
