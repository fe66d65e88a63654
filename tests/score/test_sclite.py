"""Our tables and alignments against sclite's own output."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tympan.errors import UserError
from tympan.score.result import ScoreResult, score
from tympan.score.sclite import render
from tympan.score.transcripts import read_transcripts


def scored(folder: Path, hyp: str = "hyp.trn", **options: bool) -> ScoreResult:
    references, hypotheses = read_transcripts(folder / "ref.trn"), read_transcripts(folder / hyp)
    return score(references, hypotheses, name=str(folder / hyp), **options)


def words(text: str) -> list[list[str]]:
    """Lines without rules and padding: sclite centres some cells and right-aligns others."""
    drawn = (re.sub(r"[|,.`'+=-]{3,}", "", line).replace("|", " | ").split() for line in text.splitlines())
    return [line for line in drawn if line]


@pytest.mark.parametrize(
    ("name", "result", "case_sensitive"),
    [
        ("set1", "result.txt", False),
        ("set1", "result_case_sensitive.txt", True),
        ("set1", "result_utf8.txt", False),
        ("set2", "result.txt", False),
    ],
)
def test_page_equals_sclite(golden: Path, name: str, result: str, case_sensitive: bool) -> None:
    folder = golden / "sclite" / name
    ours = render(scored(folder, case_sensitive=case_sensitive))
    assert words(ours) == words((folder / result).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["set1", "set2"])
def test_alignments_equal_sclite_to_the_byte(golden: Path, name: str) -> None:
    folder = golden / "sclite" / name
    pages = (render(scored(folder)), (folder / "result.txt").read_text(encoding="utf-8"))
    ours, theirs = (page.partition("DUMP OF SYSTEM ALIGNMENT")[2].rstrip() for page in pages)
    assert ours == theirs


@pytest.mark.parametrize("name", ["set1", "set2"])
def test_counts_of_each_utterance(golden: Path, name: str) -> None:
    folder = golden / "sclite" / name
    rows = [line.split("\t") for line in (folder / "per_utt.tsv").read_text().splitlines()[1:]]
    expected = {row[0]: tuple(map(int, row[1:])) for row in rows}
    counts = {u.id.lower(): u.counts for u in scored(folder).utterances}
    ours = {k: (c.correct, c.substitutions, c.deletions, c.insertions) for k, c in counts.items()}
    assert ours == expected


def test_reordered_hypotheses(golden: Path) -> None:
    folder = golden / "sclite" / "set4_mismatch"
    ours = render(scored(folder, "hyp_reordered.trn"))
    assert words(ours) == words((folder / "result_reordered.txt").read_text())


def test_missing_hypotheses_count_as_deletions(golden: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = golden / "sclite" / "set4_mismatch"
    result = scored(folder, "hyp_missing.trn")
    assert (result.total.deletions, result.total.words) == (2, 6)
    assert "s1-u2" in caplog.text
    compatible = render(scored(folder, "hyp_missing.trn", drop_missing=True))
    assert words(compatible) == words((folder / "result_missing.txt").read_text())


def test_hypothesis_without_reference_is_refused(golden: Path) -> None:
    with pytest.raises(UserError, match="s2-u4"):
        scored(golden / "sclite" / "set4_mismatch", "hyp_extra.trn")
