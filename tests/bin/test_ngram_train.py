"""`tympan ngram_train` as a user types it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tympan.bin.ngram_train import main
from tympan.errors import UserError
from tympan.text.ngram.load import load_ngram


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "train.txt"
    path.write_text("a b c\na b d\nb c\n", encoding="utf-8")
    return path


def test_the_recipes_command_line(text: Path, tmp_path: Path) -> None:
    arpa, binary = tmp_path / "out" / "lm.arpa", tmp_path / "lm.bin"
    argv = ["-o", "3", "--discount_fallback", "--prune", "0", "0", "1", "--arpa", str(arpa), "--binary", str(binary)]
    assert main([*argv, str(text)]) == 0
    assert load_ngram(arpa).counts == load_ngram(binary).counts == [7, 7, 2]


def test_an_order_that_pruning_empties_is_left_out(
    text: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    arpa = tmp_path / "lm.arpa"
    assert main(["-o", "4", "--discount_fallback", "--prune", "0", "0", "1", "--arpa", str(arpa), str(text)]) == 0
    assert load_ngram(arpa).counts == [7, 7, 2]
    assert "no 4-gram is left after pruning: the model has order 3" in caplog.text


def test_lmplzs_way_from_stdin_to_stdout(text: Path) -> None:
    command = [sys.executable, "-m", "tympan", "ngram_train", "-o", "2", "--discount_fallback", "-"]
    done = subprocess.run(command, input=text.read_bytes(), capture_output=True, check=True)
    assert done.stdout.startswith(b"\\data\\\nngram 1=7\nngram 2=7\n\n\\1-grams:\n")
    assert done.stdout.endswith(b"\n\n\\end\\\n")


def test_the_memory_may_be_a_percentage(text: Path, tmp_path: Path) -> None:
    """asr.sh passes 20%."""
    arpa = tmp_path / "lm.arpa"
    assert main(["-S", "20%", "--discount_fallback", "-o", "2", "--arpa", str(arpa), str(text)]) == 0
    assert load_ngram(arpa).counts == [7, 7]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["-o", "0"], "--order: must be at least 1"),
        (["-o", "2", "--discount_fallback", "0.5", "1"], "three numbers"),
        (["-o", "2", "--discount_fallback", "0.5", "1", "4"], "three numbers"),
        (["-o", "2", "--memory", "much"], "--memory: expected a number and a unit"),
        (["-o", "2", "--memory", "120%"], "--memory: expected at most 100%"),
        (["-o", "2", "--temp_dir", "nowhere"], "--temp_dir: nowhere is not a directory"),
        (["-o", "2"], "Pass --discount_fallback"),
        ([], "order"),
    ],
)
def test_mistakes_are_named(text: Path, tmp_path: Path, argv: list[str], message: str) -> None:
    arpa = tmp_path / "lm.arpa"
    with pytest.raises(UserError, match=message):
        main([*argv, "--arpa", str(arpa), str(text)])
    assert not arpa.exists()
