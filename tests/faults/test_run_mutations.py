"""Random values where training runs differ in how they run: batches, statistics, effects, files of other tools."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.faults.command_families import make_more
from tests.faults.config_families import Materials
from tests.faults.config_mutations import make_trial
from tests.faults.run_families import RUNS, WEIGHTS, prepare_runs
from tests.faults.test_config_mutations import SEED, TRIALS, faults, quiet

pytest.importorskip("transformers", reason="the extra 'hf' is not installed")

__all__ = ["quiet"]


@pytest.fixture(scope="module")
def materials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Materials]:
    made = Materials.make(tmp_path_factory.mktemp("materials"))
    make_more(made)
    prepare_runs(made)
    yield made
    made.server.close()


@pytest.mark.parametrize("family", RUNS)
def test_without_a_change_every_run_succeeds(materials: Materials, family: str) -> None:
    for number in range(1, 4):
        trial = make_trial(number, materials.folder, family=family, most_changes=0, families=RUNS, weights=WEIGHTS)
        assert replace(trial, always_runs=False).run(materials) == ("accepted", "")


def test_random_runs(materials: Materials) -> None:
    found = faults(materials, range(40), families=RUNS, weights=WEIGHTS)
    assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(2))
def test_many_random_runs(materials: Materials, part: int) -> None:
    """400 runs. `make soak` sets a larger number, and TYMPAN_SEED other values."""
    first = 1000 + SEED * 1_000_000 + part * TRIALS
    found = faults(materials, range(first, first + TRIALS), families=RUNS, weights=WEIGHTS)
    assert not found, "\n".join(found)
