"""The corpus of beeps of the integration tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))


@pytest.fixture(scope="session")
def beeps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config file for asr_train on a corpus of beeps."""
    from train_corpus import make_corpus

    return make_corpus(tmp_path_factory.mktemp("beeps"))
