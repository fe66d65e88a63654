"""Manifests: one table with the path and the text of every recording, as CSV, TSV or JSON lines."""

from __future__ import annotations

import csv
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tympan.data.kaldi_dir import DataDir
from tympan.errors import UserError, check_faults
from tympan.files import read_text, status_of

PATHS = ("path", "audio", "audio_filepath", "file_name", "wav", "file")
TEXTS = ("text", "sentence", "transcript", "transcription")
SPEAKERS = ("speaker", "speaker_id", "client_id")
IDS = ("id", "utt_id")
STARTS = ("start", "offset")


def read_manifest(manifest: Path, *, audio_dir: Path | None = None) -> DataDir:
    """Build the data directory that a manifest describes. All mistakes are reported together, with their lines.

    Columns are path and text, and optionally speaker and id. Alternative names are listed above. Relative paths are
    looked up in `audio_dir`, or next to the manifest. Without an id column, ids are made from speaker and file.
    """
    tables: dict[str, dict[str, str]] = {"wav.scp": {}, "text": {}, "utt2spk": {}}
    faults: list[str] = []
    base = manifest.parent if audio_dir is None else audio_dir
    for number, row in _rows(manifest):
        try:
            utterance, values = _utterance(row, base)
            if utterance in tables["text"]:
                raise ValueError(f"the id '{utterance}' occurs twice; add a column 'id' with different values")
        except ValueError as error:
            faults.append(f"{manifest}:{number}: {error}")
            continue
        for name, value in values.items():
            tables[name][utterance] = value
    check_faults(faults)
    if not tables["text"]:
        raise UserError(f"{manifest}: the manifest has no recordings")
    return DataDir(manifest.parent, tables)


def _rows(manifest: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    """Yield line number and columns. The suffix .json or .jsonl means JSON lines, .tsv tabs, any other commas."""
    text = read_text(manifest, encoding="utf-8-sig")
    if manifest.suffix in (".json", ".jsonl"):
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip():
                yield number, _json_object(line, f"{manifest}:{number}")
        return
    # Quotes have no special meaning in a TSV file, as in Common Voice.
    is_tsv = manifest.suffix == ".tsv"
    reader = csv.DictReader(
        text.splitlines(keepends=True),
        delimiter="\t" if is_tsv else ",",
        quoting=csv.QUOTE_NONE if is_tsv else csv.QUOTE_MINIMAL,
        restval="",
    )
    with _csv_errors(manifest, reader):
        header = [name.strip() for name in reader.fieldnames or ()]
    missing = [names[0] for names in (PATHS, TEXTS) if not set(names) & set(header)]
    if missing:
        raise UserError(
            f"{manifest}:1: the first line must name the columns; there is no '{missing[0]}', found: "
            f"{', '.join(header) or 'nothing'}"
        )
    reader.fieldnames = header
    with _csv_errors(manifest, reader):
        for row in reader:
            yield reader.line_num, row


@contextmanager
def _csv_errors(manifest: Path, reader: csv.DictReader[str]) -> Iterator[None]:
    try:
        yield
    except csv.Error as error:
        raise UserError(f"{manifest}:{reader.reader.line_num}: {error}; a quotation mark may be missing") from None


def _json_object(line: str, place: str) -> Mapping[str, object]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place}: not JSON ({error}); each line must be one object") from None
    if not isinstance(row, dict):
        raise UserError(f'{place}: each line must be an object such as {{"path": "a.wav", "text": "..."}}')
    return row


def _utterance(row: Mapping[str, object], base: Path) -> tuple[str, dict[str, str]]:
    path, text = first_value(row, PATHS), " ".join(first_value(row, TEXTS).split())
    if not path or not text:
        raise ValueError(f"there is no {PATHS[0] if not path else TEXTS[0]}")
    if first_value(row, STARTS) not in ("", "0", "0.0"):
        raise ValueError("parts of recordings ('start', 'offset') are not supported; cut the recordings first")
    status = status_of(base / path)
    if status is None or not stat.S_ISREG(status.st_mode):
        raise ValueError(f"there is no file {os.path.abspath(base / path)!r:.300}")
    audio = (base / path).resolve()
    speaker = clean_id(first_value(row, SPEAKERS))
    name = clean_id(first_value(row, IDS)) or clean_id(str(Path(path).with_suffix("")))
    # Kaldi's tools need ids that start with the speaker.
    utterance = f"{speaker}-{name}" if speaker and not name.startswith(speaker) else name
    values = {"wav.scp": str(audio), "text": text, "utt2spk": speaker or utterance}
    for item in (utterance, *values.values()):
        item.encode()  # JSON can have halves of characters, which raise a ValueError
    return utterance, values


def first_value(row: Mapping[str, object], names: tuple[str, ...]) -> str:
    """The value of the first of these columns that the row has; empty if it has none."""
    return next((str(row[name]).strip() for name in names if row.get(name) not in (None, "")), "")


def clean_id(text: str) -> str:
    """Return an id without spaces and slashes."""
    return "_".join(text.strip("./").replace("/", "_").split())
