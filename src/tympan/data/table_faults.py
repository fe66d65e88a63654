"""Read one file of a data directory line by line, and list all its faults."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from tympan.data.kaldi_dir import BYTE_ORDER_MARK, OPTIONAL_VALUE, parse_segment, split_line
from tympan.errors import UserError
from tympan.files import open_file


@dataclass(frozen=True, order=True)
class Fault:
    """A fault. With `is_warning` it does not make the data directory unusable."""

    file: str
    line: int
    kind: str
    message: str
    key: str = ""
    is_warning: bool = False

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {'warning: ' if self.is_warning else ''}{self.message}"


@dataclass(frozen=True)
class ScannedTable:
    """The usable lines of a file (the first of repeated ids), their line numbers, and the faults of the others."""

    path: Path
    entries: dict[str, str] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    def fault(self, key: str, kind: str, message: str, *, is_warning: bool = False) -> Fault:
        """A fault in the line of `key`."""
        return Fault(str(self.path), self.lines.get(key, 0), kind, message, key, is_warning)


def scan_table(path: Path) -> ScannedTable:
    """Read a file leniently and list what a strict reader would reject."""
    table = ScannedTable(path)
    last_key = ""
    with open_file(path) as stream:
        for number, raw in enumerate(stream, 1):

            def add(kind: str, message: str, key: str = "", number: int = number) -> None:
                table.faults.append(Fault(str(path), number, kind, message, key))

            try:
                line = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                add("encoding", f"the line is not UTF-8 text (byte {error.start + 1})")
                continue
            if number == 1 and line.startswith(BYTE_ORDER_MARK):
                add("byte-order-mark", "the file begins with a byte order mark (probably written on Windows)")
                line = line.removeprefix(BYTE_ORDER_MARK)
            if line.endswith("\r\n"):
                add("carriage-return", "the line ends with a carriage return (probably written on Windows)")
            key, value = split_line(line)
            if not key:
                add("empty-line", "the line is empty")
                continue
            problem = _value_problem(path.name, key, value)
            if problem is not None:
                add("columns", problem, key)
                continue
            if key in table.entries:
                add("duplicate", f"'{key}' appears twice, first on line {table.lines[key]}", key)
                continue
            if key < last_key:
                add("unsorted", f"'{key}' comes after '{last_key}'; ids must be in the order of `LC_ALL=C sort`", key)
            last_key = key
            table.entries[key] = value
            table.lines[key] = number
    return table


def _value_problem(name: str, key: str, value: str) -> str | None:
    columns = value.split()
    if not value:
        return None if name in OPTIONAL_VALUE else f"'{key}' has no value: expected '{_EXPECTED.get(name, 'ID VALUE')}'"
    if name in ("utt2spk", "utt2lang", "spk2gender", "utt2uniq") and len(columns) != 1:
        return f"expected '{_EXPECTED.get(name, 'ID VALUE')}', found {len(columns) + 1} columns"
    if name == "spk2gender" and value not in ("m", "f"):
        return f"the gender of '{key}' is '{value}', allowed: m, f"
    if name in ("utt2dur", "reco2dur") and not _is_positive(value):
        return f"the duration of '{key}' is '{value}', expected a number of seconds"
    if name == "utt2num_frames" and not re.fullmatch(r"[0-9]+", value):
        return f"the number of frames of '{key}' is '{value}', expected an integer"
    if name == "segments":
        try:
            parse_segment(value, "")
        except UserError as error:
            return str(error).removeprefix(": ")
    return None


_EXPECTED = {
    "wav.scp": "ID PATH",
    "feats.scp": "ID FILE.ark:OFFSET",
    "utt2spk": "UTTERANCE SPEAKER",
    "spk2utt": "SPEAKER UTTERANCE ...",
    "segments": "UTTERANCE RECORDING START END",
    "utt2dur": "UTTERANCE SECONDS",
    "utt2num_frames": "UTTERANCE FRAMES",
    "spk2gender": "SPEAKER m|f",
}


def _is_positive(value: str) -> bool:
    try:
        return float(value) > 0
    except ValueError:
        return False
