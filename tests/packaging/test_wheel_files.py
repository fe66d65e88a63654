"""The wheel holds every module, the recipes of egs/ byte for byte, and the page of the report; and nothing else."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from wheels import ROOT, build_wheel, copy_checkout

PACKAGE = ROOT / "src" / "tympan"


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Content by path of a wheel that was built where a recipe had been run."""
    checkout = copy_checkout(tmp_path_factory.mktemp("wheel") / "checkout")
    left = checkout / "egs" / "an4" / "asr1" / "exp" / "run" / "config.yaml"
    left.parent.mkdir(parents=True)
    left.write_text("max_epoch: 1\n")
    with zipfile.ZipFile(build_wheel(checkout, checkout.parent)) as wheel:
        return {name: wheel.read(name) for name in wheel.namelist()}


def needed() -> dict[str, Path]:
    """File by its path in the wheel."""
    modules = [path for path in PACKAGE.rglob("*.py") if "egs" not in path.relative_to(PACKAGE).parts]
    data = [*(PACKAGE / "recipe" / "conf").rglob("*.*"), PACKAGE / "score" / "report.html", PACKAGE / "py.typed"]
    recipes = [path for kind in ("conf/**/*", "test/*.sh", "*.sh", "*.py", "*.md") for path in egs(kind)]
    files = {path.relative_to(PACKAGE.parent).as_posix(): path for path in [*modules, *data]}
    return files | {f"tympan/recipe/egs/{path.relative_to(ROOT / 'egs').as_posix()}": path for path in recipes}


def egs(pattern: str) -> list[Path]:
    return [path for path in (ROOT / "egs").glob(f"*/*/{pattern}") if path.is_file()]


def test_it_is_complete_and_holds_nothing_else(contents: dict[str, bytes]) -> None:
    files = {name for name in contents if not name.partition("/")[0].endswith(".dist-info")}
    assert files == set(needed())


def test_files_are_those_of_the_checkout(contents: dict[str, bytes]) -> None:
    assert [name for name, path in needed().items() if contents[name] != path.read_bytes()] == []


def test_the_package_has_no_second_copy_of_egs() -> None:
    assert (PACKAGE / "recipe" / "egs").resolve() == ROOT / "egs"
    for name in ("fbank.conf", "pitch.conf", "specaug.yaml"):
        assert (PACKAGE / "recipe" / "conf" / name).resolve().is_relative_to(ROOT / "egs")


def test_licence_and_command_are_named(contents: dict[str, bytes]) -> None:
    said = {name.partition("/")[2]: text.decode() for name, text in contents.items() if ".dist-info/" in name}
    assert "License-Expression: Apache-2.0" in said["METADATA"]
    assert "tympan = tympan.bin.main:cli" in said["entry_points.txt"]
    assert said["licenses/LICENSE"] == (ROOT / "LICENSE").read_text()
