"""Tympan: train, decode and inspect end-to-end speech recognizers.

`tympan.load`, `tympan.train`, `tympan.finetune`, `tympan.evaluate` and `tympan.DataDir` are imported when first used.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tympan.api import evaluate, finetune, load, train
    from tympan.data.kaldi_dir import DataDir

__version__ = "0.1.0"
__all__ = ["DataDir", "__version__", "evaluate", "finetune", "load", "train"]

if "torch" not in sys.modules:
    # Else `import torch` loads torch-npu and ends in a traceback where CANN is not set up, even on the CPU.
    # Tympan loads it where devices are looked for (runtime/device.py). Child processes inherit the setting.
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")

_OFFERED = dict.fromkeys(("evaluate", "finetune", "load", "train"), "tympan.api") | {"DataDir": "tympan.data.kaldi_dir"}


def __getattr__(name: str) -> object:
    """Import what is offered here when it is first asked for: `import tympan` takes milliseconds."""
    if name not in _OFFERED:
        raise AttributeError(f"module 'tympan' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module(_OFFERED[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_OFFERED})
