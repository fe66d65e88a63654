"""Repair a data directory: sort it, drop broken entries, keep a copy of the original files."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tympan.data.kaldi_dir import DataDir, kind_of, parse_segment, write_table
from tympan.data.table_faults import Fault
from tympan.data.validate import Report
from tympan.errors import UserError

_BROKEN_AUDIO = ("missing-audio", "unreadable-audio", "truncated-audio", "not-finite-audio", "empty-audio")
_BROKEN_UTTERANCE = ("empty-text", "segment", "missing-archive")
_BROKEN_LINE = (
    "byte-order-mark",
    "carriage-return",
    "empty-line",
    "encoding",
    "columns",
    "duplicate",
    "unsorted",
    "spk2utt",
)


@dataclass(frozen=True)
class Fixed:
    """Dropped ids with the reason, number of fixed lines by kind, and the directory of the original files."""

    data: DataDir
    dropped: dict[str, str]
    mended: dict[str, int]
    backup: Path | None


def fix(report: Report) -> Fixed:
    """Rewrite a validated directory without its faults. Nothing is changed if there is nothing to fix.

    Utterances are kept if they are in every file and their audio can be read. Of repeated lines, the first is kept. A
    mix of sample rates is not fixed, because only the user knows which rate is right.
    """
    dropped = dict(sorted(dict(_dropped(report)).items()))
    tables = {
        name: dict(sorted(table.entries.items()))
        for name, table in report.tables.items()
        if name != "spk2utt" and (table.entries or kind_of(name) != "utterance")
    }
    whole = DataDir(report.path, tables)
    kept = whole.keep([key for key in whole.utterances if key not in dropped])
    mended = {kind: count for kind, count in report.kinds().items() if kind in _BROKEN_LINE}
    if not _differs(kept, report):
        return Fixed(kept, {}, {}, None)
    if not kept.utterances:
        reasons = "".join(f"\n'{key}': {reason}" for key, reason in list(dropped.items())[:5])
        raise UserError(f"{report.path}: no utterance would remain, so nothing was changed. First faults:{reasons}")
    backup = _back_up(report)
    written = kept.write(report.path)  # a table without any usable line is removed; its copy is in the backup
    write_table(backup / "dropped", dropped)
    return Fixed(written, dropped, mended, backup)


def _dropped(report: Report) -> Iterator[tuple[str, str]]:
    """Yield (utterance, reason to drop it). The first reason comes last, so that a dict keeps it."""
    tables = report.tables
    base = next(name for name in ("segments", "wav.scp", "feats.scp") if name in tables)
    audio = {fault.key: _without_id(fault) for fault in report.errors if fault.kind in _BROKEN_AUDIO}
    everywhere = set(tables[base].entries)
    for name, table in tables.items():
        if kind_of(name) == "utterance" and table.entries:
            for key in everywhere ^ set(table.entries):
                here, there = (base, name) if key in everywhere else (name, base)
                yield key, f"it is in {here} but not in {there}"
    for key in everywhere:
        recording = key
        if base == "segments":
            recording = parse_segment(tables["segments"].entries[key], "").recording
            if recording not in tables["wav.scp"].entries:
                yield key, f"its recording '{recording}' is not in wav.scp"
        if recording in audio:
            yield key, audio[recording]
    for fault in report.errors:
        if fault.kind in _BROKEN_UTTERANCE:
            yield fault.key, _without_id(fault)


def _without_id(fault: Fault) -> str:
    """The message of a fault without the id at its start, which the list of dropped entries has already."""
    for start in (f"utterance '{fault.key}' ", f"'{fault.key}': ", f"'{fault.key}' "):
        if fault.message.startswith(start):
            rest = fault.message.removeprefix(start)
            return f"it {rest}" if not start.endswith(": ") else rest
    return fault.message


def _differs(kept: DataDir, report: Report) -> bool:
    if any(fault.kind in _BROKEN_LINE for fault in report.faults):
        return True
    if "utt2spk" in report.tables and "spk2utt" not in report.tables:
        return True
    return any(kept.tables.get(name) != table.entries for name, table in report.tables.items() if name != "spk2utt")


def _back_up(report: Report) -> Path:
    """Copy the tables to .backup, .backup.1, ...: an earlier copy is never overwritten."""
    backup, number = report.path / ".backup", 0
    while backup.exists():
        number += 1
        backup = report.path / f".backup.{number}"
    backup.mkdir()
    for name in report.tables:
        shutil.copy2(report.path / name, backup / name)
    return backup
