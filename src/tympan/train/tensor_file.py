"""Files of tensors, whole or not there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tympan.runtime.atomic import atomic_write


def save_tensors(path: Path, content: Mapping[str, Any]) -> None:
    """Write with torch.save; a full disk is an OSError."""
    with atomic_write(path, "wb") as stream:
        try:
            torch.save(content, stream)
        except RuntimeError as error:
            # torch tries to end a file that could not be written, and fails with words about positions
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise
