"""Fixtures for all tests: reference material, and two threads. Skipped tests are counted by reason."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from _pytest.terminal import TerminalReporter

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("TYMPAN_SHARED", ROOT.parent / "shared"))
"""Reference material that is not in the repository, because it has recordings of people or is large."""

TRAVELLING = ROOT / "tests" / "golden"
"""The part of it that is in the repository: synthetic audio and text only."""


# A shell ignores SIGINT for jobs in the background, and child processes inherit that. Tests of Ctrl-C need the default.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


class GoldenPath(type(Path())):
    """A path below tests/golden. Joining it with a name that does not exist skips the test."""

    def __truediv__(self, key: str | os.PathLike[str]) -> GoldenPath:
        path: GoldenPath = super().__truediv__(key)
        if not path.exists():
            pytest.skip("golden values from recordings or large texts are not in the repository (tests/golden)")
        return path


def _shared(*parts: str) -> Path:
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"reference material '{Path('shared', *parts)}' is not next to this checkout")
    return path


@pytest.fixture(scope="session")
def golden() -> Path:
    """Outputs of the original tools: Kaldi, KenLM, sclite, ESPnet2."""
    return SHARED / "golden" if (SHARED / "golden").exists() else GoldenPath(TRAVELLING)


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


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """How many tests were skipped, and why: one line per reason."""
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else str(report.longrepr)
        for report in terminalreporter.stats.get("skipped", [])
    )
    if reasons:
        terminalreporter.write_line(f"{reasons.total()} skipped:")
        for reason, number in reasons.most_common():
            terminalreporter.write_line(f"  {number:>4}  {reason}")
