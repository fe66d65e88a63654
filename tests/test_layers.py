"""Packages import only from lower layers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_import_directions() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_drawer_for_everything() -> None:
    names = {path.name for path in (ROOT / "src").rglob("*.py")}
    assert not names & {"utils.py", "common.py", "helpers.py", "misc.py"}
