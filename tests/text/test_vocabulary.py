"""Token lists: ESPnet2's order, ESPnet1's dictionary, and lists that are rejected."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tympan.errors import UserError
from tympan.text.vocabulary import (
    Vocabulary,
    read_token_list,
    vocabulary_from_counts,
    write_token_list,
    write_units,
)

TOKENS = ["<blank>", "<unk>", "a", "b", "<space>", "<sos/eos>"]


def test_ids_of_the_special_tokens() -> None:
    vocabulary = Vocabulary(TOKENS)
    assert (vocabulary.blank_id, vocabulary.unk_id, vocabulary.eos_id, vocabulary.sos_id) == (0, 1, 5, 5)
    assert len(vocabulary) == 6
    assert vocabulary.tokens2ids(["b", "z", "<space>"]) == [3, 1, 4]
    assert vocabulary.ids2tokens([3, 1]) == ["b", "<unk>"]


def test_mistakes_of_a_list_are_told_together() -> None:
    with pytest.raises(UserError) as caught:
        Vocabulary(["<blank>", "a", "a"], source="tokens.txt")
    assert "tokens.txt: token 'a' appears 2 times" in str(caught.value)
    assert "'<unk>' is missing" in str(caught.value)


def test_file_round_trip_keeps_unusual_blanks(tmp_path: Path) -> None:
    tokens = ["<blank>", "<unk>", "\u3000", "\u2028", "一", "<sos/eos>"]
    write_token_list(tokens, tmp_path / "tokens.txt")
    assert read_token_list(tmp_path / "tokens.txt").tokens == tuple(tokens)


def test_espnet1_dictionary_round_trip(tmp_path: Path) -> None:
    vocabulary = Vocabulary(TOKENS)
    write_units(vocabulary, tmp_path / "units.txt")
    assert (tmp_path / "units.txt").read_text() == "<unk> 1\na 2\nb 3\n<space> 4\n"
    assert read_token_list(tmp_path / "units.txt").tokens == vocabulary.tokens


def test_espnet1_dictionary_with_a_gap_is_refused(tmp_path: Path) -> None:
    (tmp_path / "units.txt").write_text("<unk> 1\na 3\n")
    with pytest.raises(UserError, match="without gaps"):
        read_token_list(tmp_path / "units.txt")


def test_missing_list_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such token list"):
        read_token_list(tmp_path / "none.txt")


def test_frequency_order_cutoff_and_size() -> None:
    counts = Counter({"x": 3, "a": 5, "b": 3, "c": 1})
    assert vocabulary_from_counts(counts) == ["<blank>", "<unk>", "a", "x", "b", "c", "<sos/eos>"]
    assert vocabulary_from_counts(counts, cutoff=1)[2:-1] == ["a", "x", "b"]
    assert vocabulary_from_counts(counts, vocabulary_size=5)[2:-1] == ["a", "x"]
    assert vocabulary_from_counts(counts, order="sorted")[2:-1] == ["a", "b", "c", "x"]
    assert vocabulary_from_counts(counts, add_symbol=["<unk>:1"]) == ["a", "<unk>", "x", "b", "c"]


def test_an_added_symbol_that_occurs_in_the_text_appears_once() -> None:
    assert vocabulary_from_counts({"<unk>": 9, "a": 1}) == ["<blank>", "<unk>", "a", "<sos/eos>"]


@pytest.mark.parametrize("entry", ["<blank>", "<blank>:x", ":0"])
def test_malformed_symbol_is_refused(entry: str) -> None:
    with pytest.raises(UserError, match="SYMBOL:POSITION"):
        vocabulary_from_counts({"a": 1}, add_symbol=[entry])
