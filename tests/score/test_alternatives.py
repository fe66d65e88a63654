"""References with alternatives, compared with the output of sclite 2.4.10."""

from __future__ import annotations

from pathlib import Path

import pytest

from tympan.score.result import score
from tympan.score.sclite import alignment
from tympan.score.transcripts import read_transcripts


@pytest.mark.parametrize(
    ("ref", "hyp", "counts", "said", "heard"),
    [
        ("{ a / b c } d", "b c d", "3 0 0 0", "b c d", "b c d"),
        ("{ a / b c } d", "d", "1 0 1 0", "A d", "* d"),
        ("x { uh / @ } y", "x y", "2 0 0 0", "x y", "x y"),
        ("x { uh / @ } y", "x UH y", "3 0 0 0", "x uh y", "x uh y"),
        ("x { uh / @ } y", "x z y", "2 0 0 1", "x * y", "x Z y"),
        ("{ a { b / c } / d } e", "a c e", "3 0 0 0", "a c e", "a c e"),
        ("{ a / b }", "a b", "1 0 0 1", "a *", "a B"),
        ("{ a / b }", "", "0 0 1 0", "A", "*"),
        ("a b", "{ a / c } b", "2 0 0 0", "a b", "a b"),
        ("@ x", "x", "1 0 0 0", "x", "x"),
        # Equal except for rounding: sclite adds thousandths in single precision.
        ("d { b } c { @ / @ } @ d", "d", "1 0 3 0", "d B C D", "d * * *"),
        ("{ @ / c } { d { b / @ } d / c d b / @ } { @ } d b b", "d a", "1 1 1 0", "d B B", "d A *"),
    ],
)
def test_the_wording_nearest_to_the_hypothesis(
    tmp_path: Path, ref: str, hyp: str, counts: str, said: str, heard: str
) -> None:
    for name, text in (("ref", ref), ("hyp", hyp)):
        (tmp_path / f"{name}.trn").write_text(f"{text} (s-1)\n")
    sides = (read_transcripts(tmp_path / f"{name}.trn") for name in ("ref", "hyp"))
    (utterance,) = score(*sides, name="hyp.trn").utterances
    lines = alignment(utterance).splitlines()
    assert lines[1:4] == [f"Scores: (#C #S #D #I) {counts}", f"REF:  {said} ", f"HYP:  {heard} "]


def test_an_alternative_may_be_empty(tmp_path: Path) -> None:
    (tmp_path / "ref.trn").write_text("{ @ / uh } (s-1)\n")
    (tmp_path / "hyp.trn").write_text("(s-1)\n")
    sides = (read_transcripts(tmp_path / f"{name}.trn") for name in ("ref", "hyp"))
    total = score(*sides, name="hyp.trn").total
    assert (total.words, total.errors, total.wrong_sentences) == (0, 0, 0)
