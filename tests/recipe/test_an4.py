"""AN4: the original archive's layout and the prepared directories give the same sets."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tympan.data.kaldi_dir import DataDir
from tympan.errors import UserError
from tympan.recipe import an4
from tympan.recipe.an4 import AN4
from tympan.recipe.corpus import write_sets


def make_original(root: Path, *, train: int = 103) -> Path:
    """An unpacked archive with empty recordings: ids and texts as in AN4's transcription files."""
    (root / "an4" / "etc").mkdir(parents=True)
    lines = {"train": [], "test": ["RUBOUT G M E F (an406-fcaw-b)"]}
    for number in range(train):
        speaker = f"f{'abc'[number % 3]}sh"
        lines["train"].append(f"<s> YES GO </s> (an{number}-{speaker}-b)")
    for name, folder in (("train", "an4_clstk"), ("test", "an4test_clstk")):
        (root / "an4" / "etc" / f"an4_{name}.transcription").write_text("\n".join(lines[name]) + "\n")
        for line in lines[name]:
            source = line[line.index("(") + 1 : -1]
            audio = root / "an4" / "wav" / folder / source.split("-")[1] / f"{source}.sph"
            audio.parent.mkdir(parents=True, exist_ok=True)
            audio.touch()
    return root


def test_original_layout(tmp_path: Path) -> None:
    write_sets(AN4, make_original(tmp_path / "corpus"), tmp_path / "data")
    sets = {name: DataDir.read(tmp_path / "data" / name) for name in (AN4.train, AN4.dev, *AN4.tests)}
    assert {name: len(one.wav) for name, one in sets.items()} == {"train_nodev": 3, "train_dev": 100, "test": 1}
    test = sets["test"]
    assert test.text == {"fcaw-an406-fcaw-b": "RUBOUT G M E F"}
    assert test.utt2spk == {"fcaw-an406-fcaw-b": "fcaw"}
    dev, train = (DataDir.read(tmp_path / "data" / name) for name in ("train_dev", "train_nodev"))
    assert set(dev.text.values()) == {"YES GO"}
    assert max(dev.text) < min(train.text)


def test_missing_recording_is_named_with_its_line(tmp_path: Path) -> None:
    root = make_original(tmp_path / "corpus")
    (root / "an4" / "wav" / "an4_clstk" / "fash" / "an3-fash-b.sph").unlink()
    with pytest.raises(UserError, match=r"an4_train\.transcription:4: no an3-fash-b\.sph"):
        an4.prepare(root)


def test_neither_layout(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="contains neither"):
        an4.prepare(tmp_path)


def test_real_directories(real_data: Path, tmp_path: Path) -> None:
    write_sets(AN4, real_data / "an4", tmp_path / "data")
    train, dev = (DataDir.read(tmp_path / "data" / name) for name in ("train_nodev", "train_dev"))
    assert (len(train.wav), len(dev.wav)) == (848, 100)
    assert all(an4.speaker_of(utterance) == speaker for utterance, speaker in train.utt2spk.items())
    assert all(Path(place).is_file() for place in dev.wav.values())
    assert sum(len(text.split()) for text in dev.text.values()) == 591


def test_split_is_the_prepared_one(real_data: Path, tmp_path: Path) -> None:
    """The original layout, rebuilt from the real ids and texts, splits as the prepared directories do."""
    root = tmp_path / "an4"
    (root / "etc").mkdir(parents=True)
    lines = []
    for name in ("train_nodev", "train_dev"):
        for utterance, text in DataDir.read(real_data / "an4" / name).text.items():
            speaker, source = utterance.split("-", 1)
            lines.append(f"<s> {text} </s> ({source})")
            audio = root / "wav" / "an4_clstk" / speaker / f"{source}.flac"
            audio.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(real_data / "an4" / name / "flac" / f"{utterance}.flac", audio)
    (root / "etc" / "an4_train.transcription").write_text("\n".join(lines) + "\n")
    write_sets(AN4, tmp_path, tmp_path / "data")
    for name in ("train_nodev", "train_dev"):
        assert DataDir.read(tmp_path / "data" / name).text == dict(
            sorted(DataDir.read(real_data / "an4" / name).text.items())
        )
