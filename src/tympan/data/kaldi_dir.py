"""A Kaldi-style data directory: its files as ordered mappings."""

from __future__ import annotations

import io
import math
import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tympan.data.audio import is_pipe, locate
from tympan.errors import UserError
from tympan.files import open_file
from tympan.runtime.atomic import atomic_write

Table = dict[str, str]

RECORDING_FILES = ("wav.scp", "reco2dur", "reco2file_and_channel")
SPEAKER_FILES = ("spk2utt", "spk2gender", "cmvn.scp")
UTTERANCE_FILES = (
    "segments",
    "text",
    "utt2spk",
    "utt2dur",
    "utt2num_frames",
    "utt2lang",
    "utt2uniq",
    "feats.scp",
    "vad.scp",
)
PATH_FILES = ("wav.scp", "feats.scp", "cmvn.scp", "vad.scp")
"""Files whose second column is a path."""
OPTIONAL_VALUE = ("text",)
"""Files whose lines may consist of only an id."""

BYTE_ORDER_MARK = "\ufeff"
"""Byte order mark. Windows editors write it before the first id; it is invisible and changes the id."""

_BLANK = re.compile(r"[ \t]+")
"""Kaldi's separators. str.split() would also split at other spaces such as U+3000, which are part of the text."""


@dataclass(frozen=True)
class Segment:
    """A part of a recording, in seconds; `end_s` None means to its end (Kaldi's -1).

    `recording` is an id of wav.scp, or its value there: a file or a command.
    """

    recording: str
    start_s: float = 0.0
    end_s: float | None = None

    def __str__(self) -> str:
        return f"{self.recording} {self.start_s:.10g} {-1 if self.end_s is None else format(self.end_s, '.10g')}"


@dataclass(frozen=True)
class DataDir:
    """`tables` maps each existing file name to its lines, id -> the rest, in file order."""

    path: Path
    tables: Mapping[str, Table] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> DataDir:
        """Read every known file of the directory. Malformed lines and repeated ids are errors with line numbers."""
        directory = Path(path)
        if not directory.is_dir():
            raise UserError(f"{directory}: no such data directory")
        names = [name for name in known_files(directory) if name != "spk2utt"]
        if "wav.scp" not in names and "feats.scp" not in names:
            raise UserError(f"{directory}: not a data directory: it has neither wav.scp nor feats.scp")
        return cls(directory, {name: read_table(directory / name) for name in names})

    @property
    def wav(self) -> Table:
        return self.tables.get("wav.scp", {})

    @property
    def text(self) -> Table:
        return self.tables.get("text", {})

    @property
    def utt2spk(self) -> Table:
        return self.tables.get("utt2spk", {})

    @property
    def feats(self) -> Table:
        return self.tables.get("feats.scp", {})

    @property
    def utt2dur(self) -> dict[str, float]:
        return {
            key: _number(value, self.path / "utt2dur", key) for key, value in self.tables.get("utt2dur", {}).items()
        }

    @property
    def utt2num_frames(self) -> dict[str, int]:
        table = self.tables.get("utt2num_frames", {})
        return {key: int(_number(value, self.path / "utt2num_frames", key)) for key, value in table.items()}

    @property
    def segments(self) -> dict[str, Segment]:
        table = self.tables.get("segments", {})
        return {key: parse_segment(value, f"{self.path / 'segments'}: {key}") for key, value in table.items()}

    @property
    def spk2utt(self) -> dict[str, list[str]]:
        """Return the sorted speakers, each with its utterances in the order of utt2spk."""
        gathered: dict[str, list[str]] = {}
        for utterance, speaker in self.utt2spk.items():
            gathered.setdefault(speaker, []).append(utterance)
        return {speaker: gathered[speaker] for speaker in sorted(gathered)}

    @property
    def utterances(self) -> list[str]:
        """Return the ids of the utterances: of segments if it exists, else of wav.scp, else of feats.scp."""
        for name in ("segments", "wav.scp", "feats.scp"):
            if name in self.tables:
                return list(self.tables[name])
        return []

    def has(self, name: str) -> bool:
        return name in self.tables

    def parts(self) -> Iterator[tuple[str, str, Segment]]:
        """Yield (utterance, audio source as it can be opened, segment of it) for every utterance."""
        if not self.has("segments"):
            for utterance, source in self.wav.items():
                yield utterance, locate(source, self.path), Segment(utterance, 0.0, None)
            return
        located: Table = {}
        for utterance, segment in self.segments.items():
            recording = segment.recording
            if recording not in located:
                if recording not in self.wav:
                    raise UserError(
                        f"{self.path / 'segments'}: recording '{recording}' of '{utterance}' is not in wav.scp"
                    )
                located[recording] = locate(self.wav[recording], self.path)
            yield utterance, located[recording], segment

    def keep(self, utterances: Collection[str]) -> DataDir:
        """Return a directory with only these utterances, and the recordings and speakers that they need."""
        wanted = set(utterances)
        tables = {name: _only(table, wanted) for name, table in self.tables.items() if kind_of(name) == "utterance"}
        recordings = wanted
        if "segments" in tables:
            recordings = {split_line(value)[0] for value in tables["segments"].values()}
        speakers = set(tables.get("utt2spk", {}).values()) or wanted
        for name, table in self.tables.items():
            if kind_of(name) == "recording":
                tables[name] = _only(table, recordings)
            elif kind_of(name) == "speaker":
                # cmvn.scp may be per utterance or per speaker.
                tables[name] = _only(table, speakers | wanted)
        return DataDir(self.path, tables)

    def located(self) -> DataDir:
        """Resolve paths relative to the data directory, so that they are valid elsewhere."""
        tables = dict(self.tables)
        for name in PATH_FILES:
            if name in tables:
                tables[name] = {
                    key: source if is_pipe(source) else locate(source, self.path)
                    for key, source in tables[name].items()
                }
        return DataDir(self.path, tables)

    def write(self, path: str | os.PathLike[str], *, keeps_others: bool = False) -> DataDir:
        """Write every table, sorted as Kaldi requires, and spk2utt. Returns the directory as written.

        Old tables in the target directory that are not written again are removed, unless `keeps_others` is true. For
        example, an old `segments` would be applied to the new recordings.
        """
        directory = Path(path)
        tables = {
            name: dict(sorted(table.items()))
            for name, table in (self.located() if directory.resolve() != self.path.resolve() else self).tables.items()
        }
        written = DataDir(directory, tables)
        for name, table in tables.items():
            write_table(directory / name, table)
        if "utt2spk" in tables:
            write_table(directory / "spk2utt", {speaker: " ".join(ids) for speaker, ids in written.spk2utt.items()})
        if not keeps_others and directory.is_dir():
            for name in set(known_files(directory)) - tables.keys():
                if name != "spk2utt" or "utt2spk" not in tables:
                    (directory / name).unlink()
        return written


def known_files(directory: Path) -> list[str]:
    """Return the files of a data directory that are tables, in a fixed order."""
    known = [*RECORDING_FILES, *UTTERANCE_FILES, *SPEAKER_FILES]
    others = (entry.name for entry in os.scandir(directory) if entry.is_file())
    more = sorted(name for name in others if name not in known and re.fullmatch(r"(text|utt2|spk2|reco2)[\w.]*", name))
    return [name for name in known if (directory / name).is_file()] + more


def kind_of(name: str) -> str:
    """Return the kind of ids in the first column of this file: 'recording', 'speaker' or 'utterance'."""
    if name in RECORDING_FILES or name.startswith("reco2"):
        return "recording"
    if name in SPEAKER_FILES or name.startswith("spk2"):
        return "speaker"
    return "utterance"


def split_line(line: str) -> tuple[str, str]:
    """Return (id, the rest), split at the first run of spaces or tabs."""
    key, _, value = line.strip(" \t\r\n").partition(" ")
    if "\t" in key:
        key, value = _BLANK.split(line.strip(" \t\r\n"), maxsplit=1)
    return key, value.lstrip(" \t")


def read_table(path: str | os.PathLike[str], *, allow_empty: bool | None = None) -> Table:
    """Read one two-column file. All faults are reported together.

    With `allow_empty` a line may consist of only an id; None: in files that are named `text`.
    """
    place = Path(path)
    needs_value = place.name not in OPTIONAL_VALUE if allow_empty is None else not allow_empty
    table: Table = {}
    faults = []
    try:
        with io.TextIOWrapper(open_file(place), encoding="utf-8") as stream:
            for number, line in enumerate(stream, 1):
                key, value = split_line(line)
                if number == 1 and key.startswith(BYTE_ORDER_MARK):
                    faults.append(f"{place}:1: the file begins with a byte order mark")
                if not key:
                    faults.append(f"{place}:{number}: the line is empty")
                elif not value and needs_value:
                    faults.append(f"{place}:{number}: '{key}' has no value")
                elif key in table:
                    faults.append(f"{place}:{number}: '{key}' appears twice")
                table[key] = value
    except UnicodeDecodeError as error:
        raise UserError(f"{place}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    if faults:
        shown = faults[:20] + ([f"... and {len(faults) - 20} more"] if len(faults) > 20 else [])
        raise UserError("\n".join([*shown, f"`tympan validate_data {place.parent}` lists every fault."]))
    return table


def write_table(path: str | os.PathLike[str], table: Mapping[str, object]) -> None:
    """Write `id value` lines atomically."""
    with atomic_write(path) as stream:
        stream.writelines(f"{key} {value}".rstrip() + "\n" for key, value in table.items())


def parse_segment(value: str, place: str) -> Segment:
    """Parse `recording start end`, as in segments. An end of -1 is the end of the recording."""
    columns = _BLANK.split(value)
    try:
        recording, start, end = columns
        start_s, end_s = float(start), float(end)
    except ValueError:
        raise UserError(f"{place}: expected 'RECORDING START END', found '{value}'") from None
    if not (0 <= start_s < math.inf and (end_s == -1 or start_s < end_s < math.inf)):
        raise UserError(f"{place}: the segment from {start} to {end} s is empty")
    return Segment(recording, start_s, None if end_s == -1 else end_s)


def _only(table: Table, wanted: Collection[str]) -> Table:
    return {key: value for key, value in table.items() if key in wanted}


def _number(value: str, path: Path, key: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise UserError(f"{path}: '{key}' has the value '{value}', expected a number") from None
