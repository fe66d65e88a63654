"""Random values for the options of every command besides training: one message, or results that make sense."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.faults.command_families import COMMANDS, WEIGHTS, make_more
from tests.faults.config_families import Materials
from tests.faults.config_mutations import make_trial
from tests.faults.test_config_mutations import SEED, TRIALS, faults, quiet

pytest.importorskip("transformers", reason="the extra 'hf' is not installed")

__all__ = ["quiet"]


@pytest.fixture(scope="module")
def materials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Materials]:
    made = Materials.make(tmp_path_factory.mktemp("materials"))
    make_more(made)
    yield made
    made.server.close()


@pytest.mark.parametrize("family", COMMANDS)
def test_without_a_change_every_command_succeeds(materials: Materials, family: str) -> None:
    for number in range(1, 7):
        trial = make_trial(number, materials.folder, family=family, most_changes=0, families=COMMANDS, weights=WEIGHTS)
        assert replace(trial, always_runs=False).run(materials) == ("accepted", "")


def test_random_options(materials: Materials) -> None:
    found = faults(materials, range(200), families=COMMANDS, weights=WEIGHTS)
    assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(4))
def test_many_random_options(materials: Materials, part: int) -> None:
    """800 calls. `make soak` sets a larger number, and TYMPAN_SEED other values."""
    first = 1000 + SEED * 1_000_000 + part * TRIALS
    found = faults(materials, range(first, first + TRIALS), families=COMMANDS, weights=WEIGHTS)
    assert not found, "\n".join(found)


ESPNET1 = "espnet.nets.pytorch_backend"
TRANSDUCERS = f"{ESPNET1}.e2e_asr_transducer:E2E"


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        ("split", {"scps": []}, "--scps: needs at least one value"),
        (
            "features",
            {"feats_type": "mfcc", "mfcc_config": {"cepstral-lifter": "-inf"}},
            "--cepstral-lifter' is '-inf', expected a number",
        ),
        (
            "features",
            {"feats_type": "fbank", "fbank_config": {"frame-length": 1000}},
            "one frame (--frame-length is 1000",
        ),
        ("espnet1", {"old": {"elayers": "x", "mtlalpha": 0.3}}, "elayers: expects a whole number from 0 to 1000"),
        ("espnet1", {"old": {"elayers": 10**25, "mtlalpha": 0.3}}, "elayers: expects a whole number from 0 to 1000"),
        ("espnet1", {"old": {"mtlalpha": [0.3], "elayers": 1}}, "mtlalpha: expects one value, found a list"),
        ("espnet1", {"old": {"process": [{"type": {}}]}}, "the processing step {} has no translation"),
        (
            "espnet1",
            {
                "old": {
                    "elayers": 1,
                    "mtlalpha": 1,
                    "intermediate-ctc-layer": "x",
                    "model-module": "espnet.nets.pytorch_backend.e2e_asr_transformer:E2E",
                }
            },
            "expects numbers such as 3,6",
        ),
        (
            "features",
            {"feats_type": "fbank_pitch", "pitch_config": {"upsample-filter-width": 99}},
            "--max-f0=400 is too",
        ),
        (
            "espnet1",
            {"old": {"enc-block-arch": ["x"], "model-module": TRANSDUCERS}},
            "a list of equal conformer or tran",
        ),
        ("apply_cmvn", {"compression_method": -8}, "--compression_method: must be between 1 and 7, found -8"),
        ("sentencepiece", {"seed": -3}, "seed: must be between 0 and 4294967295, found -3"),
        ("sentencepiece", {"field": "9"}, "there is no text in the columns that --field 9 selects"),
        ("sentencepiece", {"vocab_size": 2}, "model with vocab_size 2, model_type "),
        ("tokenize", {"write_vocabulary": True, "add_nonsplit_symbol": ["x"]}, "add_symbol and add_nonsplit_symbol: "),
    ],
)
def test_a_mistake_is_named(materials: Materials, family: str, options: dict[str, object], message: str) -> None:
    trial = make_trial(1, materials.folder, family=family, most_changes=0, families=COMMANDS, weights=WEIGHTS)
    outcome, what = replace(trial, config={**trial.config, **options}, always_runs=False).run(materials)
    assert (outcome, message in what) == ("rejected", True), what
