"""Folders of the package `datasets` (Hugging Face), as `save_to_disk` writes them: recordings inside of tables."""

from __future__ import annotations

import importlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import soundfile

from tympan.data.kaldi_dir import DataDir
from tympan.data.manifest import IDS, SPEAKERS, TEXTS, clean_id, first_value
from tympan.errors import UserError, check_faults
from tympan.runtime.atomic import atomic_write
from tympan.runtime.packages import import_optional

AUDIO = "audio"
SUFFIXES = {"WAV": ".wav", "WAVEX": ".wav", "FLAC": ".flac", "OGG": ".ogg", "MPEG": ".mp3", "MP3": ".mp3"}


def is_dataset(folder: Path) -> bool:
    """Whether `folder` was written by `save_to_disk`."""
    return any((folder / name).is_file() for name in ("dataset_info.json", "dataset_dict.json"))


def read_dataset(folder: Path, *, audio_dir: Path, split: str | None = None) -> DataDir:
    """Build the data directory of one split. Recordings that the tables contain are written to `audio_dir`."""
    table = _open(folder, split)
    names = table.column_names
    missing = [kinds[0] for kinds in ((AUDIO,), TEXTS) if not set(kinds) & set(names)]
    if missing:
        raise UserError(f"{folder}: the dataset has no column '{missing[0]}', found: {', '.join(names)}")
    package = importlib.import_module("datasets")
    if isinstance(table.features[AUDIO], package.Audio):
        table = table.cast_column(AUDIO, package.Audio(decode=False))
    tables: dict[str, dict[str, str]] = {"wav.scp": {}, "text": {}, "utt2spk": {}}
    faults: list[str] = []
    for number, row in enumerate(table):
        try:
            utterance, values = _utterance(row, number, audio_dir)
        except ValueError as error:
            faults.append(f"{folder}: row {number}: {error}")
            continue
        for name, value in values.items():
            tables[name][utterance] = value
    check_faults(faults)
    return DataDir(folder, tables)


def _open(folder: Path, split: str | None) -> Any:
    package = import_optional("datasets", f"{folder} is a dataset of Hugging Face; reading it")
    try:
        found = package.load_from_disk(str(folder))
    except Exception as error:  # the package raises errors of many kinds
        raise UserError(f"{folder}: not a readable dataset ({str(error).splitlines()[0]})") from None
    if not isinstance(found, Mapping):
        if split is not None:
            raise UserError(f"--split {split}: {folder} has no splits; remove the option")
        return found
    if split not in found:
        given = f"has no split '{split}'" if split else "has splits, so --split is needed"
        raise UserError(f"{folder} {given}: {', '.join(found)}")
    return found[split]


def _utterance(row: Mapping[str, Any], number: int, audio_dir: Path) -> tuple[str, dict[str, str]]:
    text = " ".join(first_value(row, TEXTS).split())
    if not text:
        raise ValueError("there is no text")
    speaker = clean_id(first_value(row, SPEAKERS))
    # Numbers with leading zeros, because Kaldi's tools expect sorted ids
    name = clean_id(first_value(row, IDS)) or f"{number:08d}"
    utterance = f"{speaker}-{name}" if speaker and not name.startswith(speaker) else name
    audio = _audio_file(row[AUDIO], utterance, audio_dir)
    return utterance, {"wav.scp": str(audio), "text": text, "utt2spk": speaker or utterance}


def _audio_file(audio: Any, utterance: str, audio_dir: Path) -> Path:
    """A file with the recording: the one that the row names, or a new one with its bytes."""
    content = audio.get("bytes") if isinstance(audio, Mapping) else None
    if content is None:
        path = Path(str(audio.get("path") if isinstance(audio, Mapping) else audio))
        if not path.is_file():
            raise ValueError(f"there is no file {path}")
        return path.resolve()
    try:
        suffix = SUFFIXES[soundfile.info(io.BytesIO(content)).format]
    except (soundfile.LibsndfileError, KeyError):
        raise ValueError("the recording is in a format that can't be read") from None
    target = audio_dir / f"{utterance}{suffix}"
    with atomic_write(target, "wb") as stream:
        stream.write(content)
    return target.resolve()
