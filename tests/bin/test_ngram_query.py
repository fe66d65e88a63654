"""`tympan ngram_query` against the goldens of KenLM."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tympan.bin.ngram_query import main
from tympan.errors import UserError


def test_totals_and_perplexity(golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = golden / "kenlm" / "zh"
    queries = json.loads((folder / "scores_4gram.json").read_text(encoding="utf-8"))
    text = tmp_path / "text"
    text.write_text("".join(f"{query['text']}\n" for query in queries), encoding="utf-8")
    assert main([str(folder / "4gram.arpa"), str(text)]) == 0
    lines = capsys.readouterr().out.splitlines()
    scores = [float(line.split()[0]) for line in lines[:-4]]
    assert scores == pytest.approx([query["bos1_eos1"] for query in queries], abs=1e-3)
    tokens = [token for query in queries for token in query["tokens_bos1_eos1"]]
    known = [score for score, _, is_unknown in tokens if not is_unknown]
    expected = {
        "Perplexity including OOVs": 10 ** (-sum(token[0] for token in tokens) / len(tokens)),
        "Perplexity excluding OOVs": 10 ** (-sum(known) / len(known)),
        "OOVs": len(tokens) - len(known),
        "Tokens": len(tokens),
    }
    assert {name: float(value) for name, _, value in (line.partition(": ") for line in lines[-4:])} == pytest.approx(
        expected, rel=1e-4
    )


def test_bad_text_is_named(golden: Path, tmp_path: Path) -> None:
    model = str(golden / "kenlm" / "tiny" / "4gram.arpa")
    text = tmp_path / "text"
    text.write_bytes(b"")
    with pytest.raises(UserError, match="no lines to score"):
        main([model, str(text)])
    text.write_bytes("a\n你\n".encode("gb18030"))
    with pytest.raises(UserError, match=":2: not UTF-8"):
        main([model, str(text)])
