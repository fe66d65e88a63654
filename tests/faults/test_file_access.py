"""Files that a user names are opened with `tympan.files`, which rejects pipes and devices and explains every error."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "tympan"
ALLOWED = {
    "bin/launch.py": "the log of a job",
    "bin/main.py": "own source",
    "config/signature.py": "own source",
    "data/fix.py": "tables that were read before",
    "data/lengths.py": "own cache",
    "data/table.py": "own cache",
    "decode/journal.py": "own journal",
    "decode/session.py": "files that ModelFiles.check found to be regular",
    "decode/zipped.py": "after open_file",
    "recipe/ascend.py": "own log",
    "recipe/demo.py": "own files",
    "recipe/download.py": "own notes",
    "recipe/draft.py": "own templates",
    "recipe/engine.py": "own records",
    "recipe/estimate.py": "after is_file",
    "recipe/fingerprint.py": "own cache",
    "recipe/run.py": "own record",
    "recipe/stored_features.py": "own statistics",
    "recipe/training_steps.py": "own lists",
    "runtime/ascend.py": "the system's files",
    "runtime/cpu.py": "the system's files",
    "runtime/launch.py": "own notes",
    "runtime/log.py": "own log",
    "runtime/memory.py": "the system's files",
    "score/report.py": "own template",
    "text/ngram/files.py": "standard input",
    "training/manifest.py": "after is_file",
    "training/watchers.py": "own note, after is_file",
    "tuning/start.py": "the folder that pack wrote",
}


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_are_opened_in_one_place(path: Path) -> None:
    found = list(openings(path.read_text(encoding="utf-8")))
    if str(path.relative_to(SOURCE)) not in ALLOWED:
        assert found == []
    else:
        assert found, "opens no file any more: remove it from ALLOWED"


def test_the_walk_finds_what_it_must() -> None:
    assert list(openings("x = path.read_text()")) == ["1: path.read_text()"]
    assert list(openings("with path.open() as s: open(x, 'rb')")) == ["1: path.open()", "1: open(x, 'rb')"]
    assert list(openings("shutil.copyfile(a, b)")) == ["1: shutil.copyfile(a, b)"]
    assert list(openings("path.open('wb'); self.open(x); read_text(path); zip.open(item)")) == []


def openings(text: str) -> Iterator[str]:
    """Calls that open a file for reading: `read_text`, `read_bytes`, copies, and `open` with its mode or without."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        mode = next((item.value for item in node.args if isinstance(item, ast.Constant)), None)
        is_method = isinstance(node.func, ast.Attribute)
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        is_read = is_method and name in ("read_text", "read_bytes")
        has_no_mode = is_method and not node.args and not any(item.arg == "fileobj" for item in node.keywords)
        is_open = name == "open" and ("r" in str(mode or "") or "+" in str(mode or "") or has_no_mode)
        is_copy = name in ("copyfile", "copy2") or ast.unparse(node.func) == "shutil.copy"
        if is_read or is_open or is_copy:
            yield f"{node.lineno}: {ast.unparse(node)}"
