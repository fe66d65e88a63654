"""st_score as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tympan.bin.main import cli


def test_scores_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sacrebleu", reason="the extra 'st' is not installed")
    (tmp_path / "ref").write_text("u1 the cat sat on the mat\nu2 it is raining today\n", encoding="utf-8")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "text").write_text("u1 the cat sat on a mat\n", encoding="utf-8")
    line = ["st_score", str(tmp_path / "ref"), str(tmp_path / "out"), "--output", str(tmp_path / "score.json")]
    assert cli(line) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("BLEU ")
    assert "1 of 2 utterances have no hypothesis and count as empty" in printed
    written = json.loads((tmp_path / "score.json").read_text(encoding="utf-8"))
    assert written["missing"] == ["u2"]
    assert written["sentences"][1]["bleu"] == 0.0
    assert 0.0 < written["bleu"] < written["sentences"][0]["bleu"]


def test_an_empty_hypothesis_in_a_file_of_any_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sacrebleu", reason="the extra 'st' is not installed")
    (tmp_path / "ref").write_text("u1 the cat sat on the mat\nu2 rain\n", encoding="utf-8")
    scores = []
    for name in ("text", "hyp.txt"):
        (tmp_path / name).write_text("u1 the cat sat on the mat\nu2\n", encoding="utf-8")
        assert cli(["st_score", str(tmp_path / "ref"), str(tmp_path / name)]) == 0
        scores.append(capsys.readouterr().out)
    assert scores[0] == scores[1]
