"""ARPA and binary files of n-gram models: a written file is read back, and damage is reported."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from tympan.decode.ngram_table import NgramTable
from tympan.errors import UserError
from tympan.text.ngram.arpa_reader import read_arpa
from tympan.text.ngram.arpa_writer import write_arpa
from tympan.text.ngram.binary import write_binary
from tympan.text.ngram.load import load_ngram
from tympan.text.ngram.model import NgramModel

# In the style of SRILM: spaces or tabs, optional backoffs, -99, no <unk>, and "b c" pruned although "a b c" is kept.
SRILM = """text before the header

\\data\\
ngram 1=5
ngram 2=3
ngram 3=1

\\1-grams:
-0.7\t</s>
-99\t<s>\t-0.30
-0.5 a -0.2
-0.6\tb\t-0.1
-0.9\tc

\\2-grams:
-0.3\t<s> a
-0.4\ta b\t-0.05
-0.2\tc a

\\3-grams:
-0.1\ta b c

\\end\\
"""


def save(folder: Path, text: str) -> str:
    path = folder / "lm.arpa"
    path.write_text(text, encoding="utf-8")
    return str(path)


def assert_equal(found: NgramModel, expected: NgramModel, tolerance: float = 0.0) -> None:
    assert found.words == expected.words
    assert found.counts == expected.counts
    for name in ("word", "suffix", "children"):
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name
    for name in ("log_prob", "backoff"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), atol=tolerance, rtol=0)


@pytest.mark.parametrize("name", ["tiny/1gram", "tiny/4gram", "zh/4gram", "zh/4gram.prune001"])
def test_files_give_the_model_back(golden: Path, tmp_path: Path, name: str) -> None:
    model = read_arpa(str(golden / "kenlm" / f"{name}.arpa"))
    for file in ("lm.arpa", "lm.arpa.gz"):
        write_arpa(model, tmp_path / file)
        assert_equal(load_ngram(tmp_path / file), model, tolerance=5.1e-7)
    assert gzip.decompress((tmp_path / "lm.arpa.gz").read_bytes()) == (tmp_path / "lm.arpa").read_bytes()
    write_binary(model, tmp_path / "lm.bin")
    mapped = load_ngram(tmp_path / "lm.bin")
    assert isinstance(mapped.word, np.memmap)
    assert_equal(mapped, model)


def test_kenlm_reads_what_is_written(golden: Path, tmp_path: Path) -> None:
    kenlm = pytest.importorskip("kenlm")
    source = golden / "kenlm" / "zh" / "4gram.arpa"
    write_arpa(read_arpa(str(source)), tmp_path / "lm.arpa")
    ours, theirs = kenlm.Model(str(tmp_path / "lm.arpa")), kenlm.Model(str(source))
    for line in (source.parent / "valid.txt").read_text(encoding="utf-8").splitlines():
        assert ours.score(line) == pytest.approx(theirs.score(line), abs=1e-4)


def test_numbers_of_all_sizes_are_written(tmp_path: Path) -> None:
    model = read_arpa(save(tmp_path, SRILM))
    values = np.array([-99, -0.0000004, -9.9999996, -12.3456785, -0.5, -100], np.float32)
    object.__setattr__(model, "log_prob", np.concatenate([values, model.log_prob[6:]]))
    write_arpa(model, tmp_path / "again.arpa")
    lines = (tmp_path / "again.arpa").read_text(encoding="utf-8").splitlines()
    start = lines.index("\\1-grams:") + 1
    written = [line.split("\t")[0] for line in lines[start : start + 6]]
    assert written == ["-99.000000", "0", "-10.000000", "-12.345678", "-0.500000", "-100.000000"]


def test_srilms_way_of_writing(tmp_path: Path) -> None:
    model = read_arpa(save(tmp_path, SRILM))
    assert model.words == ["</s>", "<s>", "a", "b", "c", "<unk>"]
    assert model.counts == [6, 3, 1]
    np.testing.assert_allclose(model.log_prob[:6], [-0.7, -99, -0.5, -0.6, -0.9, -100])
    np.testing.assert_allclose(model.backoff, [0, 0, -0.3, -0.2, -0.1, 0, 0, 0, -0.05, 0], atol=1e-7)
    # "a b c" ends with "b c", which is missing, so "c" is the longest known suffix.
    assert model.suffix[-1] == model.words.index("c") + 1


def test_a_missing_suffix_is_backed_off_over(tmp_path: Path) -> None:
    model = read_arpa(save(tmp_path, SRILM))
    table = NgramTable.from_model(model, torch.device("cpu"))

    def scores(sentence: str) -> list[float]:
        state, found = torch.tensor(table.begin), []
        for word in sentence.split():
            number = torch.tensor(model.words.index(word))
            found.append(float(table.score(state, number)))
            state = table.advance(state, number)
        return found

    # After "a b c", neither "a b c a" nor "b c" is known, but "c a" is; after that, "a b".
    assert scores("a b c a b") == pytest.approx([-0.3, -0.4, -0.1, -0.2, -0.4])
    # "<s> c" is not known, so the backoff of <s> is used; "c </s>" is not known, and c has no backoff.
    assert scores("c </s>") == pytest.approx([-0.3 - 0.9, -0.7])
    assert scores("a b a") == pytest.approx([-0.3, -0.4, -0.05 - 0.1 - 0.5])


def test_upper_case_unk_is_unk(tmp_path: Path) -> None:
    model = read_arpa(
        save(tmp_path, SRILM.replace("-0.9\tc", "-0.9\t<UNK>").replace("c a", "<UNK> a").replace(" c", " <UNK>"))
    )
    assert "<unk>" in model.words
    assert "<UNK>" not in model.words


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("\\data\\", "data", r"lm.arpa: no line \\data\\: this is not an ARPA file"),
        ("ngram 2=3", "ngram 3=3", r":5: expected 'ngram 2=...', found 'ngram 3=3'"),
        ("ngram 2=3", "ngram two", r":5: expected 'ngram 2=COUNT' or an empty line, found 'ngram two'"),
        ("\\2-grams:", "\\3-grams:", r":15: expected '\\2-grams:'"),
        ("ngram 1=5", "ngram 1=4", r":13: expected '\\2-grams:' or fewer 1-grams, found '-0.9"),
        ("ngram 1=5", "ngram 1=6", r":14: expected a number, 1 word"),
        ("ngram 3=1", "ngram 3=2", r":22: expected a number, 3 word"),
        ("-0.4\ta b\t-0.05", "-0.4\ta b\t-0.05\t1", r":17: expected a number, 2 word.*found '-0.4\ta b"),
        ("-0.4\ta b\t-0.05", "-0.4\ta", r":17: expected a number, 2 word"),
        ("-0.6\tb", "x0.6\tb", r":12: expected a number, found 'x0.6'"),
        ("-0.4\ta b", "x0.4\ta b", r":17: expected a number, found 'x0.4'"),
        ("-0.4\ta b", "0.4\ta b", r":17: a log10 probability must be 0 or less"),
        ("-0.4\ta b", "nan\ta b", r":17: a log10 probability must be 0 or less"),
        ("\t-0.05", "\tinf", r":17: a log10 probability must be 0 or less and a backoff finite"),
        ("-0.4\ta b", "-0.4\ta zebra", r":17: the word 'zebra' is not among the 1-grams"),
        ("-0.2\tc a", "-0.2\ta b", r":18: 'a b' is given twice \(also in line 17\)"),
        ("-0.6\tb", "-0.6\ta", r":12: the word 'a' is given twice"),
        ("-0.1\ta b c", "-0.1\tb b c", r":21: the 3-gram 'b b c': its first 2 word\(s\) are not among the 2-grams"),
        ("\t<s>\t", "\t<S>\t", "'<s>' is not among the 1-grams"),
        ("\\end\\\n", "", r"expected \\end\\ here; the file is truncated"),
        ("-0.1\ta b c\n\n\\end\\\n", "", "the file ends here, but 1 of the 1 3-grams are missing"),
    ],
)
def test_malformed_arpa_names_the_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in SRILM
    with pytest.raises(UserError, match=message):
        read_arpa(save(tmp_path, SRILM.replace(old, new, 1)))


def test_arpa_in_another_encoding(tmp_path: Path) -> None:
    path = tmp_path / "lm.arpa"
    path.write_bytes(SRILM.replace("c", "砍").encode("gb18030"))
    with pytest.raises(UserError, match=r":13: .* is not UTF-8"):
        read_arpa(str(path))


def test_a_binary_file_that_is_damaged(golden: Path, tmp_path: Path) -> None:
    path = tmp_path / "lm.bin"
    write_binary(read_arpa(str(golden / "kenlm" / "tiny" / "4gram.arpa")), path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-64])
    with pytest.raises(UserError, match=r"written by Tympan \(the file is truncated"):
        load_ngram(path)
    path.write_bytes(whole.replace(b'"counts": [9', b'"counts": [8'))
    with pytest.raises(UserError, match="array sizes do not match"):
        load_ngram(path)
    path.write_bytes(whole[:40])
    with pytest.raises(UserError, match="damaged"):
        load_ngram(path)
    # A backoff or probability of another value, which is within its range
    path.write_bytes(whole[:-80] + bytes([whole[-80] ^ 1]) + whole[-79:])
    with pytest.raises(UserError, match="does not match its checksum"):
        load_ngram(path)


def test_a_binary_file_without_a_checksum(golden: Path, tmp_path: Path) -> None:
    """As written before there was one."""
    model = read_arpa(str(golden / "kenlm" / "tiny" / "4gram.arpa"))
    write_binary(model, tmp_path / "lm.bin")
    whole = (tmp_path / "lm.bin").read_bytes()
    (tmp_path / "lm.bin").write_bytes(whole.replace(b'"crc32"', b'"other"'))
    assert_equal(load_ngram(tmp_path / "lm.bin"), model)


def test_other_files_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "lm.bin"
    with pytest.raises(UserError, match="no such n-gram model"):
        load_ngram(path)
    path.write_bytes(b"mmap lm http://kheafield.com/code format version 5\n\0")
    with pytest.raises(UserError, match="binary format is not supported; use the ARPA file"):
        load_ngram(path)
