"""Reading references and hypotheses, and splitting them into units."""

from __future__ import annotations

from pathlib import Path

import pytest

from tympan.errors import UserError
from tympan.score.alternatives import Choice
from tympan.score.transcripts import Unit, read_transcripts, split_units


@pytest.mark.parametrize(
    ("text", "unit", "tokens"),
    [
        ("今天 天气", "char", ["今", "天", "<space>", "天", "气"]),
        ("A <noise> B", "char", ["A", "<space>", "<noise>", "<space>", "B"]),
        ("打开wifi设置", "mixed", ["打", "开", "wifi", "设", "置"]),
        ("it's <unk> 好", "mixed", ["it's", "<unk>", "好"]),
        ("HELLO  WORLD", "word", ["HELLO", "WORLD"]),
        ("", "char", []),
    ],
)
def test_units(text: str, unit: Unit, tokens: list[str]) -> None:
    assert split_units(text, unit) == tokens


def test_kaldi_text(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("b-1 你 好\na-1\tx y\nc\n", encoding="utf-8")
    transcripts = read_transcripts(tmp_path / "text", unit="char", remove_space=True)
    assert [(t.id, t.speaker, t.tokens) for t in transcripts] == [
        ("b-1", "b", ("你", "好")),
        ("a-1", "a", ("x", "y")),
        ("c", "all", ()),
    ]


def test_only_line_ends_end_a_line(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes("a-1 one\u2028two\r\na-2 x\x85y\r\n".encode())
    assert [transcript.id for transcript in read_transcripts(path)] == ["a-1", "a-2"]


def test_faults_are_listed_together(tmp_path: Path) -> None:
    path = tmp_path / "hyp.trn"
    path.write_text("a b (s-1)\nno id here\nc (s-1)\n")
    with pytest.raises(UserError) as error:
        read_transcripts(path)
    assert f"{path}:2:" in str(error.value)
    assert f"{path}:3: utterance 's-1' is already on line 1" in str(error.value)


@pytest.mark.parametrize("content", [b"", b"\xb5\xc4 (a-1)"])
def test_empty_and_foreign_encoding(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ref.trn"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"ref\.trn"):
        read_transcripts(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        read_transcripts(tmp_path / "text")


def test_speakers_and_comments_of_trn(tmp_path: Path) -> None:
    (tmp_path / "ref.trn").write_text(";; made by hand\na (x_y)\nb (p-q-r)\nc (m_n-o)\nd (z)\n")
    read = read_transcripts(tmp_path / "ref.trn")
    assert [transcript.speaker for transcript in read] == ["x", "p", "m_n", "all"]


def test_choices_of_trn(tmp_path: Path) -> None:
    (tmp_path / "ref.trn").write_text("x/y {ab/ { c / @ } D } @ (s-1)\n")
    (read,) = read_transcripts(tmp_path / "ref.trn", unit="char")
    nothing = Choice(((),))
    inner = Choice((("c",), (nothing,)))
    assert read.tokens == ("x", "/", "y", Choice((("a", "b"), (inner, "D"))), nothing)
    (tmp_path / "hyp.trn").write_text("a { b / c (s-1)\n")
    with pytest.raises(UserError, match=r"1: '\{' without a matching '\}'"):
        read_transcripts(tmp_path / "hyp.trn")
