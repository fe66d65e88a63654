"""Words with times, CTM and SRT; joining the pieces of a long recording."""

from __future__ import annotations

import dataclasses

import pytest

from tympan.data.kaldi_dir import Segment
from tympan.decode.hypothesis import Hypothesis, join_hypotheses
from tympan.decode.output import ctm, srt, vtt
from tympan.decode.words import words_of


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
        ("é", ["<0xC3>", "<0xA9>"], [("é", 0.0, 0.15)]),
        ("café au", ["▁caf", "<0xC3>", "<0xA9>", "▁au"], [("café", 0.0, 0.25), ("au", 0.3, 0.35)]),
        # Phones without their lexicon, which do not mark where words begin.
        ("爱 我", ["AI", "4", "WO"], [("AI", 0.0, 0.05), ("4", 0.1, 0.15), ("WO", 0.2, 0.25)]),
        ("", [], []),
        (
            "我爱NLP。",
            ["▁我爱", "NL", "P。"],
            [("我", 0.0, 0.025), ("爱", 0.025, 0.05), ("NLP", 0.1, 0.225), ("。", 0.225, 0.25)],
        ),
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
    assert text == "1\n00:00:00,000 --> 00:00:00,150\n你好\n\n2\n01:02:03,500 --> 01:02:03,650\n再见\n\n"
    many = hypothesis("你" * 50, ["你"] * 50)
    lines = srt(words_of(many)).split("\n")[2::4]
    assert "".join(lines) == "你" * 50
    assert max(map(len, lines)) <= 21


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("我爱NLP。", ["▁我爱", "NLP", "。"]),
        ("我 爱 NLP", ["我", "<space>", "爱", "<space>", "N", "L", "P"]),
        ("GO ON", ["▁GO", "▁O", "N"]),
    ],
)
def test_subtitles_are_pieces_of_the_text_as_it_is_written(text: str, tokens: list[str]) -> None:
    assert srt(words_of(hypothesis(text, tokens))).splitlines()[2:] == [text, ""]


def test_subtitles_of_phones_are_the_words() -> None:
    phones = hypothesis("GO 我 NLP", ["G", "OU", "W", "O", "N"])
    words = dataclasses.replace(phones, words=(("GO", 2), ("我", 2), ("NLP", 1)))
    assert srt(words_of(words)).splitlines()[2] == "GO 我 NLP"


def test_subtitles_of_bytes_keep_the_spaces() -> None:
    tokens = ["▁caf", "<0xC3>", "<0xA9>", "▁au"]
    assert srt(words_of(hypothesis("café au", tokens))).splitlines()[2] == "café au"
    assert srt(words_of(hypothesis("爱", ["AI", "4"]))).splitlines()[2] == "爱"


def test_webvtt_has_the_captions_of_srt() -> None:
    words = words_of(hypothesis("<unk> & ON", ["<unk>", "&", "ON"], start=3723.5))
    assert vtt(words) == "WEBVTT\n\n01:02:03.500 --> 01:02:03.750\n&lt;unk&gt; &amp; ON\n\n"
    assert vtt([]) == "WEBVTT\n\n"


def test_a_row_for_a_table() -> None:
    row = hypothesis("GO ON", ["▁GO", "▁O", "N"]).to_dict()
    assert (row["text"], row["score"], row["score_ctc"]) == ("GO ON", -1.0, -2.0)
    assert row["words"] == ["GO", "ON"]
    assert (row["word_start_s"], row["word_end_s"]) == ([0.0, 0.1], [0.05, 0.25])
    assert row["token_start_s"] == [0.0, 0.1, 0.2]
    assert not any(isinstance(value, dict) for value in row.values())
    without = dataclasses.replace(hypothesis("GO", ["GO"]), times=None, token_confidences=None).to_dict()
    assert without.keys() == row.keys()
    assert without["words"] is without["confidence"] is None


def test_no_words_make_no_subtitles() -> None:
    assert srt([]) == ""


def test_pieces_are_joined_with_their_times() -> None:
    pieces = [
        (Segment("", 0.0), hypothesis("GO", ["GO"])),
        (Segment("", 20.0), hypothesis("", [])),
        (Segment("", 40.0), hypothesis("ON", ["ON"])),
    ]
    whole = join_hypotheses(pieces, separator=" ")
    assert whole.text == "GO ON"
    assert whole.times == ((0.0, 0.05), (40.0, 40.05))
    assert whole.score == -3.0
    assert whole.scores == {"ctc": -6.0}
    assert whole.confidence == pytest.approx(0.5)


def test_json_brings_back_the_same_hypothesis() -> None:
    import json

    one = hypothesis("你好", ["你", "好"])
    assert Hypothesis.from_dict(json.loads(json.dumps(one.as_dict()))) == one
