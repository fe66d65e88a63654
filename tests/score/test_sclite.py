"""Tables and alignments compared with sclite's output."""

from __future__ import annotations

from pathlib import Path

import pytest

from tympan.errors import UserError
from tympan.score.result import ScoreResult, score
from tympan.score.sclite import render
from tympan.score.sclite_table import summary_page
from tympan.score.transcripts import Transcript, read_transcripts


def scored(folder: Path, hyp: str = "hyp.trn", **options: bool) -> ScoreResult:
    references, hypotheses = read_transcripts(folder / "ref.trn"), read_transcripts(folder / hyp)
    return score(references, hypotheses, name=str(folder / hyp), **options)


@pytest.mark.parametrize(
    ("name", "result", "case_sensitive"),
    [
        ("set1", "result.txt", False),
        ("set1", "result_case_sensitive.txt", True),
        ("set1", "result_utf8.txt", False),
        ("set2", "result.txt", False),
    ],
)
def test_page_equals_sclite_to_the_byte(golden: Path, name: str, result: str, case_sensitive: bool) -> None:
    folder = golden / "sclite" / name
    ours = render(scored(folder, case_sensitive=case_sensitive))
    assert ours == (folder / result).read_text(encoding="utf-8")


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
    assert ours == (folder / "result_reordered.txt").read_text()


def test_missing_hypotheses_count_as_deletions(golden: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = golden / "sclite" / "set4_mismatch"
    result = scored(folder, "hyp_missing.trn")
    assert (result.total.deletions, result.total.words) == (2, 6)
    assert "s1-u2" in caplog.text
    compatible = render(scored(folder, "hyp_missing.trn", drop_missing=True))
    assert compatible == (folder / "result_missing.txt").read_text()


def test_hypothesis_without_reference_is_rejected(golden: Path) -> None:
    with pytest.raises(UserError, match="s2-u4"):
        scored(golden / "sclite" / "set4_mismatch", "hyp_extra.trn")


def transcripts(lines: dict[str, str]) -> list[Transcript]:
    return [Transcript(name, name.partition("-")[0], tuple(text.split())) for name, text in lines.items()]


def table(ref: dict[str, str], hyp: dict[str, str], **options: bool) -> list[str]:
    result = score(transcripts(ref), transcripts(hyp), name="hyp.trn", **options)
    return [line.strip() for line in summary_page(result, percentages=True).splitlines() if line.strip()]


def test_speakers_without_words_are_counted_and_excluded_from_the_mean() -> None:
    """The output of sclite 2.4.10."""
    ref = {"s1-u1": "", "s1-u2": "", "s2-u3": "a b", "s3-u4": "c d e", "s4-x": ""}
    lines = table(ref, ref | {"s1-u1": "x", "s2-u3": "a c"})
    assert "| s1     |    2      0 |    0*     0*     0*     1*     1*  50.0 |" in lines
    assert "| Sum/Avg|    5      5 | 80.0   20.0    0.0   20.0   40.0   40.0 |" in lines
    assert "|  Mean  |  1.3    1.3 | 75.0+  25.0+   0.0+   0.0+  25.0+  37.5 |" in lines
    assert lines[-1] == "+ Speaker(s) with no reference data is ignored"
    assert "| Sum/Avg|    1      0 |  0.0    0.0    0.0    0.0    0.0  100.0 |" in table({"a-1": ""}, {"a-1": "x"})


def test_names_wider_than_the_table_widen_it() -> None:
    long = "a" * 90
    result = score(transcripts({"a-1": "x"}), transcripts({"a-1": "x"}), name=long)
    lines = summary_page(result, percentages=True).splitlines()
    assert f"|{long}|" in lines
    assert {len(line) for line in lines[5:] if line} == {92}


def test_case_of_ids_and_speakers_counts_only_where_case_does() -> None:
    lines = table({"S1-a": "x", "s1-b": "y"}, {"s1-A": "x", "S1-B": "y"})
    assert "| s1     |    2      2 |100.0    0.0    0.0    0.0    0.0    0.0 |" in lines
    with pytest.raises(UserError, match="s1-A"):
        table({"S1-a": "x"}, {"s1-A": "x"}, case_sensitive=True)
