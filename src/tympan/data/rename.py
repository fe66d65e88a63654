"""Rename the ids of a data directory: prefixes and suffixes of utterances, speakers and recordings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tympan.data.kaldi_dir import DataDir, Table, kind_of, split_line

Rename = Callable[[str], str]


@dataclass(frozen=True)
class Renaming:
    """How to rename each kind of id."""

    utterance: Rename = str
    speaker: Rename = str
    recording: Rename = str


def affix(prefix: str = "", suffix: str = "") -> Rename:
    return lambda name: f"{prefix}{name}{suffix}"


def rename(data: DataDir, renaming: Renaming) -> DataDir:
    """Rename the ids of every table. Without segments a recording is an utterance, and is renamed like one."""
    recording = renaming.recording if data.has("segments") else renaming.utterance
    keys = {"utterance": renaming.utterance, "speaker": renaming.speaker, "recording": recording}
    tables: dict[str, Table] = {}
    for name, table in data.tables.items():
        new_key = keys[kind_of(name)]
        if name == "cmvn.scp" and not set(table) <= set(data.utt2spk.values()):
            new_key = renaming.utterance
        tables[name] = {new_key(key): value for key, value in table.items()}
    if data.has("utt2spk"):
        tables["utt2spk"] = {renaming.utterance(key): renaming.speaker(who) for key, who in data.utt2spk.items()}
    if data.has("segments"):
        tables["segments"] = {
            renaming.utterance(key): _in_recording(value, recording) for key, value in data.tables["segments"].items()
        }
    return DataDir(data.path, tables)


def _in_recording(segment: str, new_name: Rename) -> str:
    name, times = split_line(segment)
    return f"{new_name(name)} {times}"
