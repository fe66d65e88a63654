"""The options of `tympan report`, and the files that it does not overwrite."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.score.report_page import page_data
from tympan.bin.report import main
from tympan.errors import UserError

TABLES = ("wav.scp", "segments", "utt2spk", "spk2utt", "text", "utt2dur")


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """One utterance, with the references in a separate folder."""
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
    with pytest.raises(UserError, match="this input file would be overwritten; choose another --output"):
        report(data_dir, "--data_dir", str(data_dir), "--output", str(lost))
    assert lost.read_text() == before


@pytest.mark.parametrize("output", [".", "..", "ref", "/"])
def test_a_directory_as_output_is_rejected(data_dir: Path, output: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data_dir.parent)
    with pytest.raises(UserError, match=re.escape(f"--output: {output} is a directory: give a file, such as")):
        report(data_dir, "--output", output)


def test_symbols_are_taken_out_and_missing_hypotheses_left_out(data_dir: Path) -> None:
    ref, page = data_dir.parent / "ref", data_dir.parent / "report.html"
    (ref / "text").write_text("s-a x y\ns-b z\n")
    (ref / "hyp").write_text("s-a x <noise> y\n")
    (ref / "symbols").write_text("<noise>\n")
    symbols = ["--non_linguistic_symbols", str(ref / "symbols")]
    for options, errors, words in (([], 2, 3), (symbols, 1, 3), ([*symbols, "--sclite_compat", "true"], 0, 2)):
        assert report(data_dir, *options, "--output", str(page)) == 0
        (system,) = page_data(page)["systems"]
        assert (system["sub"] + system["del"] + system["ins"], system["words"]) == (errors, words)
        told = "ignored" if "--sclite_compat" in options else "counted as deletions"
        assert system["missing"] == f"References without a hypothesis, {told}: 1 (s-b)"
    with pytest.raises(UserError, match="would be overwritten"):
        report(data_dir, *symbols, "--output", str(ref / "symbols"))


def test_results_of_different_utterances_are_not_compared(data_dir: Path) -> None:
    ref = data_dir.parent / "ref"
    (ref / "text").write_text("s-a x\ns-b z\n")
    (ref / "hyp").write_text("s-a x\ns-b z\n")
    (ref / "other").write_text("s-a x\n")
    page = data_dir.parent / "report.html"
    with pytest.raises(UserError, match=r"were scored on different utterances \(2 and 1\) and cannot be paired"):
        report(data_dir, "--compare", str(ref / "other"), "--sclite_compat", "true", "--output", str(page))
