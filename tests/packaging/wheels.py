"""Builds the source distribution and from it the wheel, as `python -m build` does, in a copy of the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("pyproject.toml", "MANIFEST.in", "README.md", "CHANGELOG.md", "CITATION.cff", "LICENSE", "requirements.txt")
MADE = ("data", "dump", "exp", "downloads", "fbank", "output", ".tympan")
"""What running a recipe leaves in its directory."""

HOOK = "import sys; from setuptools import build_meta; print(build_meta.build_{kind}(sys.argv[1]))"


def copy_checkout(target: Path) -> Path:
    """The files that packaging reads, with links kept as links."""
    target.mkdir()
    for name in COPIED:
        shutil.copy(ROOT / name, target / name)
    shutil.copytree(
        ROOT / "src" / "tympan",
        target / "src" / "tympan",
        symlinks=True,
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    shutil.copytree(ROOT / "egs", target / "egs", symlinks=True, ignore=shutil.ignore_patterns(*MADE))
    return target


def build_wheel(checkout: Path, out: Path) -> Path:
    """The wheel, made from the source distribution."""
    archive = _hook("sdist", checkout, out)
    with tarfile.open(archive) as tar:
        tar.extractall(out / "sdist", filter="data")
    (unpacked,) = (out / "sdist").iterdir()
    return _hook("wheel", unpacked, out)


def _hook(kind: str, directory: Path, out: Path) -> Path:
    done = subprocess.run(
        [sys.executable, "-c", HOOK.format(kind=kind), str(out)],
        cwd=directory,
        env=without_checkout(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return out / done.stdout.splitlines()[-1]


def without_checkout() -> dict[str, str]:
    """The environment, with nothing that would find this checkout's modules."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
