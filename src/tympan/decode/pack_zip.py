"""Pack a model as ESPnet2 does: a zip file with meta.yaml and the files as they are, for both toolkits."""

from __future__ import annotations

import os
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
import yaml

import tympan
from tympan.errors import UserError
from tympan.runtime.atomic import atomic_write

YAML_FILES = ("asr_train_config", "lm_train_config")
"""meta.yaml lists these apart from the weights."""


def pack_zip(files: Mapping[str, Path], extra: Sequence[Path], output: Path) -> Path:
    """Write `output` with `files`, by ESPnet2's names, and the files and folders in `extra`."""
    if output.suffix != ".zip":
        raise UserError(f"--outpath: must end with .zip, found {output}")
    missing = [path for path in (*files.values(), *extra) if not path.exists()]
    if missing:
        raise UserError("\n".join(f"{path}: no such file or folder" for path in missing))
    meta = {
        "files": {name: _inside(path) for name, path in files.items() if name not in YAML_FILES},
        "yaml_files": {name: _inside(path) for name, path in files.items() if name in YAML_FILES},
        "timestamp": time.time(),
        "python": sys.version,
        "torch": str(torch.__version__),
        "tympan": tympan.__version__,
    }
    with atomic_write(output, "wb") as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("meta.yaml", yaml.safe_dump(meta))
        written = set()
        for path in _every_file([*files.values(), *extra]):
            if _inside(path) not in written:
                archive.write(path, _inside(path))
                written.add(_inside(path))
    return output


def _every_file(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from (item for item in sorted(path.rglob("*")) if item.is_file())
        else:
            yield path


def _inside(path: Path) -> str:
    """The name in the zip file: relative to the working directory, as the model's configuration names its files."""
    absolute = Path(os.path.abspath(path))
    if absolute.is_relative_to(Path.cwd()):
        return absolute.relative_to(Path.cwd()).as_posix()
    return absolute.relative_to(absolute.anchor).as_posix()
