"""Every dotted name and every file that the documentation names exists."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "benchmarks").glob("*.md")])
DOTTED = re.compile(r"\btympan(?:\.[A-Za-z_]\w*)+")
FOLDERS = (
    "docs|tests|benchmarks|egs|src|tympan|bin|config|data|decode|features|models|nn|recipe|runtime|score|tasks|text"
    "|train"
)
FILE = re.compile(rf"(?<![\w/.-])(?:{FOLDERS})/[\w/]+\.(?:py|md|sh|yaml)\b")
PLACEHOLDER = re.compile(r"\b[A-Z]{3,}\b")
PAST = {"CHANGELOG.md", "NOTES.md"}
"""Pages that tell the past."""


EXAMPLES = {"tympan.recipe.yesno"}
"""Modules that a page tells the reader to write."""


def resolve(name: str) -> None:
    """Import the longest module of a dotted name and look up the rest."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            annotations = getattr(found, "__annotations__", {})
            fields = getattr(found, "__dataclass_fields__", {})
            if not hasattr(found, part) and (part in annotations or part in fields):
                return
            found = getattr(found, part)
        return
    raise ModuleNotFoundError(name)


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in PAST], ids=lambda page: page.name)
def test_names_exist(page: Path) -> None:
    missing = []
    for name in sorted(set(DOTTED.findall(page.read_text(encoding="utf-8")))):
        if PLACEHOLDER.search(name) or name in EXAMPLES:
            continue
        try:
            resolve(name)
        except (AttributeError, ModuleNotFoundError) as error:
            missing.append(f"{name}: {error}")
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in PAST], ids=lambda page: page.name)
def test_files_exist(page: Path) -> None:
    named = set(FILE.findall(page.read_text(encoding="utf-8")))
    places = (ROOT, ROOT / "src", ROOT / "src" / "tympan")
    missing = [
        name
        for name in sorted(named)
        if not PLACEHOLDER.search(name) and not any((place / name).exists() for place in places)
    ]
    assert not missing, f"{page.name} names files that do not exist: {', '.join(missing)}"


def test_a_wrong_name_is_found() -> None:
    resolve("tympan.training.task.Task.build_model")
    with pytest.raises((AttributeError, ModuleNotFoundError)):
        resolve("tympan.training.task.Tusk")
    with pytest.raises((AttributeError, ModuleNotFoundError)):
        resolve("tympan.nothing.here")
