"""Damaged files of every kind: one message or a sensible value, never a traceback, a hang or gigabytes of memory."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from tests.faults.command_families import COMMANDS
from tests.faults.damage import Reader, try_reader
from tests.faults.file_readers import READERS as FILES
from tests.faults.model_readers import MODEL_READERS

READERS = [*FILES, *MODEL_READERS]
TRIALS = int(os.environ.get("TYMPAN_TRIALS", "200"))
SEED = int(os.environ.get("TYMPAN_SEED", "0"))
IDS = [reader.name.replace(" ", "_") for reader in READERS]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)  # undone after the test, for the tests that read the log
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("reader", READERS, ids=IDS)
def test_damaged_files(reader: Reader, tmp_path: Path) -> None:
    assert try_reader(reader, tmp_path, trials=range(12)).faults == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("reader", READERS, ids=IDS)
def test_many_damaged_files(reader: Reader, tmp_path: Path) -> None:
    """200 trials for each kind: more than 10,000 damaged files. `make soak` sets a larger number and another seed."""
    assert try_reader(reader, tmp_path, trials=range(1000, 1000 + TRIALS), seed=SEED).faults == []


def test_the_numbers_in_security_md() -> None:
    page = (Path(__file__).parents[2] / "SECURITY.md").read_text(encoding="utf-8")
    assert f"{len(READERS)} kinds of files are damaged" in page
    assert f"{len(COMMANDS)} other commands get random options" in page


def test_enough_kinds_for_the_number_of_trials() -> None:
    assert 200 * len(READERS) >= 10_000
