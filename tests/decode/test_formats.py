"""Words with times, CTM and SRT; joining the pieces of a long recording."""

from __future__ import annotations

import pytest

from tympan.decode.formats import ctm, srt, words_of
from tympan.decode.hypothesis import Hypothesis, Piece, join_pieces


def hypothesis(text: str, tokens: list[str], *, start: float = 0.0, step: float = 0.1) -> Hypothesis:
    times = tuple((round(start + i * step, 3), round(start + (i + 0.5) * step, 3)) for i in range(len(tokens)))
    confidences = tuple(0.5 + 0.01 * i for i in range(len(tokens)))
    return Hypothesis(text, tuple(tokens), tuple(range(len(tokens))), -1.0, {"ctc": -2.0}, times, confidences)


@pytest.mark.parametrize(
    ("text", "tokens", "want"),
    [
        ("GO ON", ["G", "O", "<space>", "O", "N"], [("GO", 0.0, 0.15), ("ON", 0.3, 0.45)]),
        ("GO ON", ["▁GO", "▁O", "N"], [("GO", 0.0, 0.05), ("ON", 0.1, 0.25)]),
        ("GO ON", ["GO", "ON"], [("GO", 0.0, 0.05), ("ON", 0.1, 0.15)]),
        ("你好", ["你", "好"], [("你", 0.0, 0.05), ("好", 0.1, 0.15)]),
        ("用WI机", ["用", "W", "I", "机"], [("用", 0.0, 0.05), ("WI", 0.1, 0.25), ("机", 0.3, 0.35)]),
        ("é", ["<0xC3>", "<0xA9>"], [("<0xC3>", 0.0, 0.05), ("<0xA9>", 0.1, 0.15)]),
        ("", [], []),
    ],
)
def test_words(text: str, tokens: list[str], want: list[tuple[str, float, float]]) -> None:
    got = words_of(hypothesis(text, tokens))
    assert [(word.text, word.start_s, word.end_s) for word in got] == want


def test_a_words_confidence_is_the_mean_of_its_tokens() -> None:
    (word,) = words_of(hypothesis("GO", ["G", "O"]))
    assert word.confidence == pytest.approx(0.505)


def test_ctm_lines() -> None:
    words = words_of(hypothesis("GO ON", ["▁GO", "▁O", "N"]))
    assert ctm("utt", words) == "utt 1 0.000 0.050 GO 0.500\nutt 1 0.100 0.150 ON 0.515\n"
    assert ctm("my talk", words[:1]) == "my_talk 1 0.000 0.050 GO 0.500\n"


def test_subtitles_break_at_pauses_and_long_lines() -> None:
    first = hypothesis("你好", ["你", "好"])
    later = hypothesis("再见", ["再", "见"], start=3723.5)
    text = srt([*words_of(first), *words_of(later)])
    assert text == "1\n00:00:00,000 --> 00:00:00,150\n你好\n\n2\n01:02:03,500 --> 01:02:03,650\n再见\n"
    many = hypothesis("你" * 50, ["你"] * 50)
    lines = srt(words_of(many)).split("\n")[2::4]
    assert "".join(lines) == "你" * 50
    assert max(map(len, lines)) <= 21


def test_pieces_are_joined_with_their_times() -> None:
    pieces = [
        Piece(0.0, hypothesis("GO", ["GO"])),
        Piece(20.0, hypothesis("", [])),
        Piece(40.0, hypothesis("ON", ["ON"])),
    ]
    whole = join_pieces(pieces, separator=" ")
    assert whole.text == "GO ON"
    assert whole.times == ((0.0, 0.05), (40.0, 40.05))
    assert whole.score == -3.0
    assert whole.scores == {"ctc": -6.0}
    assert whole.confidence == pytest.approx(0.5)


def test_json_brings_back_the_same_hypothesis() -> None:
    import json

    one = hypothesis("你好", ["你", "好"])
    assert Hypothesis.from_dict(json.loads(json.dumps(one.as_dict()))) == one
