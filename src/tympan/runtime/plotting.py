"""Import matplotlib without the settings of the working directory."""

from __future__ import annotations

import importlib
import os
import sys

_FILE = "matplotlibrc"


def import_matplotlib() -> None:
    """Call this before the first import of matplotlib.

    A `matplotlibrc` in the working directory could end a run (savefig.dpi: 0), run LaTeX (text.usetex: true), or be a
    pipe. Matplotlib reads it before every other file, and has no option for this. The user's own file is read.
    """
    if "matplotlib" in sys.modules:
        return
    known = os.path.exists
    os.path.exists = lambda path: path != _FILE and known(path)
    try:
        importlib.import_module("matplotlib")
    finally:
        os.path.exists = known
