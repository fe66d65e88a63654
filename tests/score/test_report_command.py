"""What `tympan report` refuses to write over, and which options it takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tympan.bin.report import main
from tympan.errors import UserError

TABLES = ("wav.scp", "segments", "utt2spk", "spk2utt", "text", "utt2dur")


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """One utterance, and the references in a folder of their own."""
    data, ref = tmp_path / "data", tmp_path / "ref"
    data.mkdir()
    ref.mkdir()
    for name in TABLES:
        (data / name).write_text("s-a s-a 0 1\n")
    (ref / "utt2spk").write_text("s-a s\n")
    for name in ("text", "hyp"):
        (ref / name).write_text("s-a x y\n")
    return data


def report(data_dir: Path, *options: str) -> int:
    ref = data_dir.parent / "ref"
    return main([str(ref / "text"), str(ref / "hyp"), *options])


@pytest.mark.parametrize("name", [*(f"data/{name}" for name in TABLES), "ref/utt2spk", "ref/text", "ref/hyp"])
def test_the_page_is_not_written_over_what_is_read(data_dir: Path, name: str) -> None:
    lost = data_dir.parent / name
    before = lost.read_text()
    with pytest.raises(UserError, match="would be written over, and is read here: choose another --output"):
        report(data_dir, "--data_dir", str(data_dir), "--output", str(lost))
    assert lost.read_text() == before


@pytest.mark.parametrize("output", [".", "..", "ref", "/"])
def test_a_directory_is_no_page(data_dir: Path, output: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data_dir.parent)
    with pytest.raises(UserError, match=re.escape(f"--output: {output} is a directory: name a file, e.g.")):
        report(data_dir, "--output", output)
