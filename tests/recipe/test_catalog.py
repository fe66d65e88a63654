"""`tympan recipe list` and `tympan recipe new DIR --like CORPUS`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tympan.bin.main import run
from tympan.bin.recipe import main
from tympan.recipe.corpus import CORPORA, Corpus, find_registered
from tympan.recipe.shipped import EGS


def test_every_corpus_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.split("\n\n")[0].splitlines()[1:]]
    assert listed == list(CORPORA)


def test_every_corpus_has_its_configuration_files() -> None:
    for name in CORPORA:
        if isinstance(find_registered(name), Corpus):
            for file in ("run.sh", "conf/train.yaml", "conf/decode.yaml", "RESULTS.md"):
                assert (EGS / name / "asr1" / file).is_file(), f"{name} has no {file}"


def test_a_recipe_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "mine", "--like", "an4"]) == 0
    assert os.access("mine/run.sh", os.X_OK)
    assert 'recipe an4 "$@"' in Path("mine/run.sh").read_text()
    copied = {path.relative_to("mine/conf") for path in Path("mine/conf").rglob("*") if path.is_file()}
    source = EGS / "an4" / "asr1" / "conf"
    assert copied == {path.relative_to(source) for path in source.rglob("*") if path.is_file()}
    assert run(main, ["new", "mine", "--like", "an4"]) == 2
    assert "mine is already a recipe" in capsys.readouterr().err
    assert run(main, ["new", "other", "--like", "an5"]) == 2
    assert "there is no recipe 'an5'. Did you mean 'an4'?" in capsys.readouterr().err
    assert not Path("other").exists()
