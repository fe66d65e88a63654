"""Fixtures for all tests: where the reference material lies, and few threads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"


def _shared(*parts: str) -> Path:
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"reference material '{Path('shared', *parts)}' is not beside this checkout")
    return path


@pytest.fixture(scope="session")
def golden() -> Path:
    """Outputs of the original tools: Kaldi, KenLM, sclite, ESPnet2."""
    return _shared("golden")


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Real recordings: AN4 and a sample of AISHELL."""
    return _shared("data")


@pytest.fixture(scope="session")
def reference() -> Path:
    """Option names, defaults and figures of the peers."""
    return _shared("reference")


def pytest_configure() -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "2")
