"""Kneser-Ney estimation compared with lmplz, in memory and with temporary files; mistakes in the text."""

from __future__ import annotations

import errno
import gzip
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tympan.errors import UserError
from tympan.text.ngram import counts
from tympan.text.ngram.arpa_reader import read_arpa
from tympan.text.ngram.corpus import read_corpus
from tympan.text.ngram.kneser_ney import FALLBACK_DISCOUNTS, Estimate, estimate
from tympan.text.ngram.model import NgramModel
from tympan.text.ngram.scratch import Scratch

IN_MEMORY = Scratch()
THROUGH_FILES = Scratch(memory_bytes=1 << 12)
"""Blocks of 1024 rows, so that texts of a few thousand tokens are sorted in several runs and arrays are in files."""


def train(
    path: Path, order: int, *, prune: tuple[int, ...] = (), scratch: Scratch = IN_MEMORY, is_fallback: bool = True
) -> Estimate:
    corpus = read_corpus(str(path), scratch=scratch)
    fallback = FALLBACK_DISCOUNTS if is_fallback else None
    return estimate(corpus, order=order, scratch=scratch, prune=prune, fallback=fallback)


def ngrams(model: NgramModel) -> dict[str, tuple[float, float]]:
    found = {}
    for n, count in enumerate(model.counts, start=1):
        first = model.first_entry(n)
        for entry, row in enumerate(model.ngrams(first, first + count), start=first):
            backoff = float(model.backoff[entry + 1]) if n < model.order else 0.0
            found[" ".join(model.words[w] for w in row)] = (float(model.log_prob[entry]), backoff)
    return found


def lmplz(path: Path) -> dict[str, tuple[float, float]]:
    """A slow reference implementation that splits lines at tabs."""
    fields = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    return {row[1]: (float(row[0]), float(row[2]) if len(row) > 2 else 0.0) for row in fields if len(row) > 1}


def assert_same(found: dict[str, tuple[float, float]], expected: dict[str, tuple[float, float]]) -> None:
    assert found.keys() == expected.keys()
    np.testing.assert_allclose([found[name] for name in expected], list(expected.values()), atol=1e-4)


@pytest.mark.parametrize("scratch", [IN_MEMORY, THROUGH_FILES], ids=["memory", "files"])
@pytest.mark.parametrize(
    ("name", "order", "prune"),
    [
        ("tiny/1gram", 1, ()),
        ("tiny/2gram", 2, ()),
        ("tiny/3gram", 3, ()),
        ("tiny/4gram", 4, ()),
        ("zh/2gram", 2, ()),
        ("zh/4gram", 4, ()),
        ("zh/4gram.prune001", 4, (0, 0, 1)),
    ],
)
def test_agrees_with_lmplz(golden: Path, name: str, order: int, prune: tuple[int, ...], scratch: Scratch) -> None:
    arpa = golden / "kenlm" / f"{name}.arpa"
    found = train(arpa.with_name("train.txt"), order, prune=prune, scratch=scratch)
    assert_same(ngrams(found.model), lmplz(arpa))
    assert bool(found.fallback_orders) == name.startswith("tiny")


def test_agrees_with_lmplz_on_random_text(golden: Path) -> None:
    folder = golden / "espnet2" / "conformer_ngram"
    assert_same(ngrams(train(folder / "train.txt", 4).model), lmplz(folder / "4gram.arpa"))


@pytest.mark.parametrize("key_bits", [24, 34])
def test_a_vocabulary_too_large_for_one_key(golden: Path, monkeypatch: pytest.MonkeyPatch, key_bits: int) -> None:
    """With eleven bits per word, four words need 44."""
    monkeypatch.setattr(counts, "KEY_BITS", key_bits)
    for scratch in (IN_MEMORY, THROUGH_FILES):
        found = train(golden / "kenlm" / "zh" / "train.txt", 4, scratch=scratch)
        assert_same(ngrams(found.model), lmplz(golden / "kenlm" / "zh" / "4gram.arpa"))


def test_states_agree_with_those_of_the_read_file(golden: Path) -> None:
    """Suffixes and children of an estimated model are equal to those found when its ARPA file is read."""
    found = train(golden / "kenlm" / "zh" / "train.txt", 4, prune=(0, 0, 1)).model
    read = read_arpa(str(golden / "kenlm" / "zh" / "4gram.prune001.arpa"))

    def suffixes(model: NgramModel) -> dict[str, str]:
        names = ["", *ngrams(model)]
        return {name: names[state] for name, state in zip(names[1:], model.suffix, strict=True)}

    assert suffixes(found) == suffixes(read)


@settings(deadline=None, max_examples=40)
@given(
    sentences=st.lists(st.lists(st.sampled_from("abcdef"), max_size=7), min_size=1, max_size=12),
    order=st.integers(1, 4),
    threshold=st.integers(0, 2),
)
def test_probabilities_sum_to_one(
    tmp_path_factory: pytest.TempPathFactory, sentences: list[list[str]], order: int, threshold: int
) -> None:
    path = tmp_path_factory.mktemp("text") / "train.txt"
    path.write_text("".join(" ".join(words) + "\n" for words in sentences), encoding="utf-8")
    longest = max(map(len, sentences))
    if not longest or order > longest + 2:
        with pytest.raises(UserError):
            train(path, order)
        return
    prune = (0, threshold) if order > 1 else (0,)
    model = train(path, order, prune=prune).model
    table = {tuple(name.split()): values for name, values in ngrams(model).items()}

    def score(context: tuple[str, ...], word: str) -> float:
        if (*context, word) in table:
            return table[(*context, word)][0]
        return table[context][1] + score(context[1:], word)

    for context in [(), *(name for name in table if len(name) < order and name[-1] != "</s>")]:
        total = sum(10 ** score(context, word) for word in model.words if word != "<s>")
        assert total == pytest.approx(1.0, abs=1e-4)


def test_an_empty_line_is_an_empty_sentence(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"a b\n\n   \nb\n")
    corpus = read_corpus(str(path), scratch=IN_MEMORY)
    assert (corpus.sentences, corpus.empty_sentences, corpus.longest) == (4, 2, 2)
    assert "<s> </s>" in ngrams(train(path, 2).model)


@pytest.mark.parametrize(
    "content",
    [
        b"a b\nc\n",
        b"a b\nc",
        b"a b\r\nc\r\n",
        b"\xef\xbb\xbfa b\nc\n",
        b"\ta  b \nc\n",
        gzip.compress(b"a b\nc\n", mtime=0),
    ],
)
def test_line_ends_and_compression_do_not_matter(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "text"
    path.write_bytes(content)
    corpus = read_corpus(str(path), scratch=IN_MEMORY)
    assert corpus.words[3:] == ["a", "b", "c"]
    assert corpus.tokens.tolist() == [3, 4, 1, 5, 1]


def test_only_ascii_space_separates(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("你\u3000好 x\u00a0y\n", encoding="utf-8")
    assert read_corpus(str(path), scratch=IN_MEMORY).words[3:] == ["你\u3000好", "x\u00a0y"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a\n你 好\n".encode("gb18030"), r":2: not UTF-8 \(byte 0xc4\)"),
        ("a b\n".encode("utf-16"), ":1: not UTF-8"),
        ("a b\n".encode("utf-16-be"), ":1: found a NUL byte"),
        (b"a\nb <unk> c\n", ":2: <unk> is a special symbol"),
        (b"</s>\n", ":1: </s> is a special symbol"),
        (b"", "no tokens in 0 lines"),
        (b"\n\n", "no tokens in 2 lines"),
        (gzip.compress(b"a b c d e f g h\n", mtime=0)[:-9], "damaged gzip"),
    ],
)
def test_a_text_that_cannot_be_used(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "text"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_corpus(str(path), scratch=IN_MEMORY)


def test_a_missing_text(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        read_corpus(str(tmp_path / "none"), scratch=IN_MEMORY)


def test_special_words_may_be_skipped(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"<s> a <unk> b <s>x </s>\n")
    corpus = read_corpus(str(path), scratch=IN_MEMORY, skip_symbols=True)
    assert corpus.words[3:] == ["a", "b", "<s>x"]


def test_a_text_of_one_token(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"a\n")
    found = ngrams(train(path, 3).model)
    assert set(found) == {"<s>", "</s>", "<unk>", "a", "<s> a", "a </s>", "<s> a </s>"}
    with pytest.raises(UserError, match="Pass --discount_fallback"):
        train(path, 3, is_fallback=False)


def test_an_order_larger_than_any_sentence(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"a\nb\n")
    with pytest.raises(UserError, match=r"no 4-gram: its longest sentence has 1 token.*use order 3 or less"):
        train(path, 4)


@pytest.mark.parametrize("prune", [(1, 0), (-1,), (0, 0, 0, 1)])
def test_thresholds_that_make_no_sense(tmp_path: Path, prune: tuple[int, ...]) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"a b c\n")
    with pytest.raises(UserError, match="--prune"):
        train(path, 3, prune=prune)


def test_the_last_threshold_is_for_all_higher_orders_and_unigrams_stay(golden: Path) -> None:
    text = golden / "kenlm" / "zh" / "train.txt"
    assert_same(ngrams(train(text, 4, prune=(0, 0, 1)).model), ngrams(train(text, 4, prune=(0, 0, 1, 1)).model))
    all_pruned = ngrams(train(text, 2, prune=(1,)).model)
    assert sum(" " not in name for name in all_pruned) == 1329


def test_a_full_disk_is_told(golden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mapped file that can't grow would kill the process, so its space is reserved first."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse, raising=False)
    with pytest.raises(
        UserError, match="No space left on device; use --temp_dir to choose a folder with more free space"
    ):
        THROUGH_FILES.zeros(10_000, np.int64)
