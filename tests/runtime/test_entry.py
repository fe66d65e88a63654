"""What a command prints for a mistake of the user."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tympan.errors import UserError
from tympan.runtime.child import code_command
from tympan.runtime.entry import run


def printed(message: str, capsys: pytest.CaptureFixture[str]) -> str:
    def main(argv: Sequence[str] | None) -> int:
        raise UserError(message)

    assert run(main, []) == 2
    return capsys.readouterr().err


def test_control_characters_of_a_file_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed("text:1: 'a\0b\x1b]0;title\x07\x9b31m\r'", capsys) == (
        "tympan: error: text:1: 'a\\x00b\\x1b]0;title\\x07\\x9b31m\\x0d'\n"
    )
    assert printed("2 mistakes:\n  ä\t语\n", capsys) == "tympan: error: 2 mistakes:\n  ä\t语\n\n"


def test_a_line_of_megabytes_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    said = printed(f"text:1: '{'a' * 5_000_000}' has no value\nnext", capsys)
    assert len(said) < 4200
    assert said.startswith("tympan: error: text:1: 'aaa")
    assert "[4,996,023 characters left out]" in said
    assert said.endswith("aaa' has no value\nnext\n")


def test_a_path_of_a_thousand_directories_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def main(argv: Sequence[str] | None) -> int:
        tmp_path.joinpath(*["d"] * 1900).mkdir(parents=True)
        return 0

    assert run(main, []) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("too many directories inside each other: use a shorter path")


def test_another_endless_recursion_is_a_fault_of_ours() -> None:
    def main(argv: Sequence[str] | None) -> int:
        return main(argv)

    with pytest.raises(RecursionError):
        run(main, [])


WRITE = """
import os, sys
from tympan.runtime.entry import run
def main(argv):
    with open(sys.argv[1], "w") as file:
        os.write(2, b"a warning of a library")
        os.write(1, b"a number")
        print(sys.stdin.read(), sys.stdout.isatty(), sys.stderr.isatty())
        sys.stderr.write("x")
        file.write("content")
    return 0
raise SystemExit(run(main))
"""


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_a_closed_stream_never_becomes_a_file_of_ours(tmp_path: Path, closed: str) -> None:
    """The first file to be opened gets the number of a closed stream, so that warnings were written into it."""
    line = ["sh", "-c", f'exec "$@" {closed}', "sh", *code_command(WRITE), str(tmp_path / "file")]
    done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "file").read_text() == "content"
