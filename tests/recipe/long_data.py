"""Data directories of many hours that need little disk space: segments of one sparse recording of silence."""

from __future__ import annotations

import random
import struct
from pathlib import Path

RATE = 16000
RECORDING_S = 3600
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def long_data_dir(directory: Path, hours: float, *, mean_s: float = 20.0, speakers: int = 10) -> Path:
    """`hours` in overlapping segments of 0.5 to 1.5 times `mean_s`, each with a sentence of made-up words."""
    directory.mkdir(parents=True)
    recording = _silence(directory / "long.wav")
    rng = random.Random(0)
    words = ["".join(rng.choices(LETTERS, k=rng.randint(2, 8))) for _ in range(1000)]
    tables: dict[str, list[str]] = {"segments": [], "text": [], "utt2spk": []}
    number = round(3600 * hours / mean_s)
    for row in range(number):
        speaker = f"{directory.name}{row * speakers // number:03d}"
        key, length_s = f"{speaker}-{row:06d}", mean_s * rng.uniform(0.5, 1.5)
        start_s = rng.uniform(0, RECORDING_S - length_s)
        tables["segments"].append(f"{key} {directory.name}-long {start_s:.2f} {start_s + length_s:.2f}\n")
        tables["text"].append(f"{key} {' '.join(rng.choices(words, k=round(2 * length_s)))}\n")
        tables["utt2spk"].append(f"{key} {speaker}\n")
    for name, lines in {**tables, "wav.scp": [f"{directory.name}-long {recording}\n"]}.items():
        (directory / name).write_text("".join(lines), encoding="utf-8")
    return directory


def _silence(path: Path) -> Path:
    """An hour of zeros. A file system with sparse files stores only the header."""
    size = 2 * RATE * RECORDING_S
    form = struct.pack("<IHHIIHH", 16, 1, 1, RATE, 2 * RATE, 2, 16)
    with path.open("wb") as stream:
        stream.write(b"RIFF" + struct.pack("<I", 36 + size) + b"WAVEfmt " + form + b"data" + struct.pack("<I", size))
        stream.truncate(44 + size)
    return path
