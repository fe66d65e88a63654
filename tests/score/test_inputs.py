"""Files of different kinds that fit together, and the errors and warnings for those that do not."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tympan.bin.score import main
from tympan.errors import UserError
from tympan.score.inputs import score_files
from tympan.score.significance import bootstrap_interval, compare
from tympan.score.transcripts import Unit, read_transcripts


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("hypothesis", ["HELLO WORLD (u1)\n", "H E L L O <space> W O R L D (u1)\n"])
@pytest.mark.parametrize("is_turned", [False, True])
def test_a_kaldi_text_and_a_trn_file_have_the_same_characters(tmp_path: Path, hypothesis: str, is_turned: bool) -> None:
    files = [write(tmp_path / "text", "u1 HELLO WORLD\n"), write(tmp_path / "h.trn", hypothesis)]
    ref, hyp = files[::-1] if is_turned else files
    total = score_files(ref, hyp, unit="char").total
    assert (total.errors, total.words) == (0, 10)


@pytest.mark.parametrize("unit", ["word", "char", "mixed"])
def test_symbols_that_do_not_count_are_taken_out_whole(tmp_path: Path, unit: Unit) -> None:
    ref = write(tmp_path / "text", "u1 A <noise> B\nu2 C [SIL] D\nu3 [SIL]\n")
    hyp = write(tmp_path / "hyp", "u1 A B\nu2 C D\nu3\n")
    symbols = write(tmp_path / "symbols", "<noise>\n[SIL]\n")
    assert score_files(ref, hyp, unit=unit).total.errors
    assert score_files(ref, hyp, unit=unit, non_linguistic_symbols=symbols).total.errors == 0


def test_full_width_marks_are_units_of_their_own(tmp_path: Path) -> None:
    text = write(tmp_path / "text", "u1 你好，world！ok\n")
    assert read_transcripts(text, unit="mixed")[0].tokens == ("你", "好", "，", "world", "！", "ok")


def test_a_reference_is_scored_once(tmp_path: Path) -> None:
    ref = write(tmp_path / "text", "A one two\nB three\n")
    hyp = write(tmp_path / "hyp", "A one two\na one two\nB three\n")
    with pytest.raises(UserError, match=r"several hypotheses.*only in case: A"):
        score_files(ref, hyp, unit="word")
    assert score_files(ref, write(tmp_path / "lower", "a one two\nb three\n"), unit="word").total.errors == 0


def test_speakers_of_other_utterances(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = write(tmp_path / "text", "s1-a one\ns2-b two\n")
    with pytest.raises(UserError, match="none of the 2 references"):
        score_files(text, text, unit="word", utt2spk=write(tmp_path / "others", "zz s9\n"))
    with caplog.at_level(logging.WARNING):
        result = score_files(text, text, unit="word", utt2spk=write(tmp_path / "some", "s1-a Ann\n"))
    assert list(result.by_speaker()) == ["Ann", "s2"]
    assert "has no speaker for 1 of 2 references" in caplog.text


def test_space_is_removed_only_from_characters(tmp_path: Path) -> None:
    text = write(tmp_path / "text", "u1 a b\n")
    with pytest.raises(UserError, match="--unit char"):
        score_files(text, text, unit="word", remove_space=True)


def test_a_folder_as_transcript_is_rejected() -> None:
    with pytest.raises(UserError, match="is a directory"):
        score_files(Path(), Path(), unit="word")


def test_each_hypothesis_is_compared_with_its_own_number_of_words(tmp_path: Path) -> None:
    ref = write(tmp_path / "r.trn", "{ a b c d e f / z } x (s-1)\nq w (s-2)\n")
    first, second = (
        score_files(ref, write(tmp_path / name, text), unit="token")
        for name, text in (
            ("1.trn", "a b c d e f x (s-1)\nq q (s-2)\n"),
            ("2.trn", "z x (s-1)\nq w w (s-2)\n"),
        )
    )
    assert (first.total.words, second.total.words) == (9, 4)
    comparison = compare(first, second)
    assert comparison.difference == pytest.approx(second.total.error_rate - first.total.error_rate)
    assert comparison.interval is not None
    assert comparison.interval.low <= comparison.difference <= comparison.interval.high
    assert compare(second, first).difference == pytest.approx(-comparison.difference)


def test_an_interval_holds_its_rate_where_references_are_empty(tmp_path: Path) -> None:
    ref = write(tmp_path / "text", "u1\nu2\n")
    first, second = (
        score_files(ref, write(tmp_path / name, text), unit="word")
        for name, text in (("1", "u1 a b c\nu2 a b c d\n"), ("2", "u1 a\nu2\n"))
    )
    interval = bootstrap_interval(first)
    assert interval is not None
    assert (interval.low, first.total.error_rate, interval.high) == (100.0, 100.0, 100.0)
    assert compare(first, second).difference == 0.0


@pytest.mark.parametrize(
    ("text", "speakers"),
    [
        ("1089-134-01 a\n1089-135-01 b\n", "1089-134-01 1089-134\n1089-135-01 1089-135\n"),
        ("a-b one\nb two\n", "a-b a\nb a\n"),
    ],
)
def test_written_trn_files_are_read_as_they_were_scored(tmp_path: Path, text: str, speakers: str) -> None:
    ref = write(tmp_path / "text", text)
    write(tmp_path / "utt2spk", speakers)
    assert main([str(ref), str(ref), "--output_dir", str(tmp_path / "out")]) == 0
    again = score_files(tmp_path / "out" / "ref.trn", tmp_path / "out" / "hyp.trn", unit="token")
    assert [one.words for one in again.by_speaker().values()] == [
        one.words for one in score_files(ref, ref, unit="word").by_speaker().values()
    ]
