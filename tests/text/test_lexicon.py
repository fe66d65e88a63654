"""The pronunciation lexicon, and words of text without spaces."""

import pickle
from pathlib import Path

import pytest

from tympan.errors import UserError
from tympan.text.lexicon import read_lexicon
from tympan.text.phonemes import PhonemeTokenizer
from tympan.text.tokenizer import build_tokenizer
from tympan.text.words import join_words, split_words


@pytest.fixture
def english(tmp_path: Path) -> Path:
    path = tmp_path / "lexicon.txt"
    path.write_text(";;; a comment\nA EY\nA(2) AH\nTEN T EH N\nTEN  T IH N\n\nO OW\nOH OW\n", encoding="utf-8")
    return path


def test_variants_of_a_word_stay_in_order(english: Path) -> None:
    lexicon = read_lexicon(english)
    assert lexicon.pronunciations["A"] == (("EY",), ("AH",))
    assert lexicon.pronunciations["TEN"] == (("T", "EH", "N"), ("T", "IH", "N"))
    assert lexicon.text2phones("TEN A") == ["T", "EH", "N", "EY"]


def test_text_without_blanks_is_cut_into_the_longest_words(tmp_path: Path) -> None:
    path = tmp_path / "lexicon.txt"
    path.write_text("银 y in2\n行 x ing2\n银行 y in2 h ang2\n", encoding="utf-8")
    lexicon = read_lexicon(path)
    assert lexicon.text2words("行银行") == [("行", ("x", "ing2")), ("银行", ("y", "in2", "h", "ang2"))]
    assert lexicon.text2phones("我行") == ["<unk>", "x", "ing2"]


def test_characters_get_their_share_of_a_word(tmp_path: Path) -> None:
    path = tmp_path / "lexicon.txt"
    path.write_text("行 x ing2\n银行 y in2 h ang2\n儿子 er2 z iii5\n哪儿 n ar3\n中国 zh ong1 g uo2\n", encoding="utf-8")
    found = read_lexicon(path).by_character({"银", "行", "中国"}).pronunciations
    assert found == {
        "行": (("x", "ing2"), ("h", "ang2")),
        "银": (("y", "in2"),),
        "儿": (("er2",),),
        "子": (("z", "iii5"),),
        "哪儿": (("n", "ar3"),),
        "中国": (("zh", "ong1", "g", "uo2"),),
    }


def test_a_tokenizer_of_a_lexicon_survives_pickling(english: Path) -> None:
    tokenizer = pickle.loads(pickle.dumps(build_tokenizer("phn", g2p_type=str(english))))
    assert tokenizer.text2tokens("TEN OH") == ["T", "EH", "N", "OW"]


@pytest.mark.parametrize(
    ("text", "message"),
    [("A EY\nB\n", "lexicon.txt:2: expected WORD P1 P2"), ("\n", "is empty"), (None, "no such lexicon")],
)
def test_a_bad_lexicon_is_named(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "lexicon.txt"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        read_lexicon(path)


def test_an_unknown_g2p_says_what_there_is() -> None:
    with pytest.raises(UserError, match=r"g2p 'nothing': must be one of.*lexicon file"):
        build_tokenizer("phn", g2p_type="nothing")


def test_a_word_that_is_missing_is_not_spelled(tmp_path: Path) -> None:
    path = tmp_path / "lexicon.txt"
    path.write_text("TEN T EH N\nT T IY\n", encoding="utf-8")
    lexicon = read_lexicon(path)
    assert lexicon.text2words("TENT T") == [("TENT", ("<unk>",)), ("T", ("T", "IY"))]
    assert lexicon.text2units("TENT T") == ["TENT", "T"]


def test_marks_of_other_formats(tmp_path: Path) -> None:
    path = tmp_path / "lexicon.txt"
    path.write_text("\ufeffTEN T EH N # a number\r\n(2) T UW\n", encoding="utf-8")
    assert read_lexicon(path).pronunciations == {"TEN": (("T", "EH", "N"),), "(2)": (("T", "UW"),)}
    path.write_text("TEN 0.5 T EH N\n", encoding="utf-8")
    with pytest.raises(UserError, match="is a probability"):
        read_lexicon(path)
    with pytest.raises(UserError, match="is a directory, but a file is expected"):
        read_lexicon(tmp_path)


def test_words_without_tones_stay_whole(tmp_path: Path) -> None:
    path = tmp_path / "lexicon.txt"
    path.write_text("学校 g a k k o o\nへ e\n학교에 h a k k y o e\n", encoding="utf-8")
    lexicon = read_lexicon(path)
    assert lexicon.text2units("学校へ 학교에") == ["学校", "へ", "학교에"]
    assert lexicon.by_character({"へ"}).pronunciations == lexicon.pronunciations


def test_symbols_are_words_of_one_token(english: Path) -> None:
    tokenizer = build_tokenizer("phn", g2p_type=str(english), non_linguistic_symbols=["<NOISE>"])
    assert isinstance(tokenizer, PhonemeTokenizer)
    assert tokenizer.text2words("TEN <NOISE> A") == [("TEN", 3), ("<NOISE>", 1), ("A", 1)]
    assert len(tokenizer.text2tokens("TEN <NOISE> A")) == 5


def test_words_are_split_and_joined_as_they_are_written() -> None:
    mixed = split_words("我们 play 游戏2 now")
    assert mixed == ["我", "们", "play", "游", "戏", "2", "now"]
    assert join_words(mixed) == "我们 play 游戏 2 now"
    assert join_words([]) == ""
    assert join_words(["나는", "간다"]) == "나는 간다"
