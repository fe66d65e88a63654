"""BLEU and chrF: values worked out by hand, several references, missing and extra hypotheses."""

from __future__ import annotations

import logging
import math
import sys

import pytest

from tympan.errors import UserError
from tympan.score.translation import score_translation

REFERENCES = {"u1": "the cat sat on the mat", "u2": "it is raining today"}


@pytest.fixture
def _sacrebleu() -> None:
    pytest.importorskip("sacrebleu")


@pytest.mark.usefixtures("_sacrebleu")
def test_bleu_by_hand() -> None:
    """Over both texts: 9/10 words, 6/8 pairs, 4/6 triples, 2/4 quadruples; both sides have 10 words."""
    hypotheses = {"u1": "the cat sat on a mat", "u2": "it is raining today"}
    score = score_translation(REFERENCES, hypotheses)
    assert score.bleu == pytest.approx(100 * (9 / 10 * 6 / 8 * 4 / 6 * 2 / 4) ** 0.25, rel=1e-9)
    assert score.bleu_signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert score.chrf_signature.startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:")
    assert [sentence.id for sentence in score.sentences] == ["u1", "u2"]
    assert score.sentences[1].bleu == pytest.approx(100.0)
    assert score.sentences[1].chrf == pytest.approx(100.0)
    assert score.sentences[0].chrf < score.chrf < 100.0
    assert f"BLEU {score.bleu:.1f} (nrefs:1|" in str(score)


@pytest.mark.usefixtures("_sacrebleu")
def test_missing_hypotheses_count_as_empty(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        score = score_translation(REFERENCES, {"u1": REFERENCES["u1"]})
    # All n-grams are correct, but only 6 of 10 words are present: the brevity penalty applies.
    assert score.bleu == pytest.approx(100 * math.exp(1 - 10 / 6), rel=1e-9)
    assert score.missing == ("u2",)
    assert score.sentences[1].bleu == score.sentences[1].chrf == 0.0
    assert "1 references have no hypothesis, counted as empty: u2" in caplog.text


@pytest.mark.usefixtures("_sacrebleu")
def test_the_best_of_several_references_counts() -> None:
    hypotheses = {"u1": "the cat sat on a rug", "u2": "It is raining today"}
    references = {"u1": ["the cat sat on the mat", "the cat sat on a rug"], "u2": "it is raining today"}
    assert score_translation(references, hypotheses, lowercase=True).bleu == pytest.approx(100.0)
    mixed = score_translation(references, hypotheses)
    assert mixed.bleu < 100.0
    assert mixed.bleu_signature.startswith("nrefs:var|case:mixed|")
    assert mixed.sentences[0].bleu == pytest.approx(100.0)


@pytest.mark.usefixtures("_sacrebleu")
def test_tokenizers() -> None:
    references, hypotheses = {"u": "今天天气很好"}, {"u": "今天天气不好"}
    assert score_translation(references, hypotheses, tokenize="zh").bleu == pytest.approx(
        100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25
    )
    assert score_translation(references, hypotheses).bleu == 0.0
    with pytest.raises(UserError, match="has no tokenizer '13b'; known: none, zh, 13a"):
        score_translation(references, hypotheses, tokenize="13b")


def test_mistakes_are_named() -> None:
    with pytest.raises(UserError, match="1 of 2 hypotheses have no reference: u3"):
        score_translation(REFERENCES, {"u1": "a", "u3": "b"})
    with pytest.raises(UserError, match="no references to score"):
        score_translation({}, {})
    with pytest.raises(UserError, match="'u1' has an empty list of references"):
        score_translation({"u1": []}, {"u1": "a"})


def test_without_sacrebleu_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(UserError, match=r"pip install 'tympan\[st\]'"):
        score_translation(REFERENCES, REFERENCES)
