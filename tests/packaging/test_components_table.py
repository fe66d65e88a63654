"""The table of components in docs/migration.md names everything that the registries have."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def components() -> ModuleType:
    spec = importlib.util.spec_from_file_location("components", DOCS / "_site" / "components.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_table_is_up_to_date(components: ModuleType) -> None:
    page = (DOCS / "migration.md").read_text(encoding="utf-8")
    assert components.table() in page, "run: python docs/_site/components.py"


def test_notes_are_about_components(components: ModuleType) -> None:
    names = {(kind, name) for kind, name, _, _ in components.rows()}
    assert set(components.NOTES) <= names
    assert ("encoder", "e_branchformer") in names
    assert len(names) > 150
