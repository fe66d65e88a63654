"""The generated command reference: every command, with the options of its parser, without importing torch."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tympan.bin.main import cli, commands

SITE = Path(__file__).resolve().parents[2] / "docs" / "_site"
PROGRAM = "import runpy, sys; runpy.run_path(sys.argv[0], run_name='__main__'); sys.exit('torch' in sys.modules)"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("commands")
    program = PROGRAM.replace("sys.argv[0]", repr(str(SITE / "commands.py")))
    done = subprocess.run([sys.executable, "-c", program, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr or "torch was imported"
    return {path.stem: path.read_text(encoding="utf-8") for path in folder.iterdir()}


def test_every_command_has_a_page(pages: dict[str, str]) -> None:
    assert set(pages) == {*commands(), "index"}
    for name, purpose in commands().items():
        assert f"[`{name}`]({name}.md)" in pages["index"]
        assert pages[name].startswith(f"# tympan {name}\n\n{purpose}\n")


@pytest.mark.parametrize("name", [name for name in commands() if name != "train"])
def test_every_option_is_there(pages: dict[str, str], capsys: pytest.CaptureFixture[str], name: str) -> None:
    """The flags of the page are those of `--help`."""
    asked = [[name, "--help"], ["recipe", "new", "--help"]] if name == "recipe" else [[name, "--help"]]
    helped = set()
    for words in asked:
        with pytest.raises(SystemExit) as ended:
            raise SystemExit(cli(words))
        assert ended.value.code == 0
        helped |= set(re.findall(r"^  (?:-\w, )?(--\w+)", capsys.readouterr().out, re.MULTILINE))
    rows = [line for line in pages[name].splitlines() if line.startswith("| `--")]
    assert {row.split("`")[1] for row in rows} == helped - {"--help", "--config", "--print_config"}
    assert all(row.replace("\\|", "").count("|") == 5 for row in rows)


def test_a_row(pages: dict[str, str]) -> None:
    assert "| `REF` |  | required | reference: a Kaldi" in pages["report"]
    assert "| `--nj` | `int` | `1` |" in pages["report"]
    assert "| `--train_dir` | `path` | required |" in pages["recipe"].partition("## tympan recipe new")[2]
