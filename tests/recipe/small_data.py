"""Data directories with a second of noise per sentence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import soundfile

SENTENCES = ("GO A B", "STOP GO", "GO STOP A")


def data_dir(directory: Path, sentences: Sequence[str] = SENTENCES, *, rate: int = 8000, channels: int = 1) -> Path:
    """A data directory with a second of noise for each sentence."""
    directory.mkdir(parents=True)
    noise = np.random.default_rng(0).normal(0, 0.1, (rate, channels))
    tables: dict[str, list[str]] = {"wav.scp": [], "text": [], "utt2spk": []}
    for row, sentence in enumerate(sentences):
        name = f"{directory.name}{row}"
        soundfile.write(directory / f"{name}.wav", noise, rate)
        for table, value in (("wav.scp", f"{name}.wav"), ("text", sentence), ("utt2spk", directory.name)):
            tables[table].append(f"{name} {value}\n")
    for table, lines in tables.items():
        (directory / table).write_text("".join(lines), encoding="utf-8")
    return directory
