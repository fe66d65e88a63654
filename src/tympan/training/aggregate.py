"""Join what several jobs of --collect_stats wrote: shape files, sums for normalization, lists of features."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tympan.errors import UserError
from tympan.files import explained, open_file, read_text, require_small_arrays
from tympan.runtime.atomic import atomic_write


def aggregate(folders: Sequence[Path], output: Path, *, has_sums: bool = True) -> None:
    """Join `folders`, each with batch_keys, stats_keys, NAME_shape and NAME_stats.npz, in their order."""
    keys = {file: _keys(folders, file) for file in ("batch_keys", "stats_keys")}
    for name in keys["batch_keys"]:
        lines = [line for folder in folders for line in sorted(_lines(folder / f"{name}_shape"), key=_utterance)]
        _write(output / f"{name}_shape", lines)
    for name in keys["stats_keys"]:
        if has_sums:
            _sum([folder / f"{name}_stats.npz" for folder in folders], output / f"{name}_stats.npz")
        lists = [folder / "collect_feats" / f"{name}.scp" for folder in folders]
        if lists[0].exists():
            _write(output / "collect_feats" / f"{name}.scp", [line for path in lists for line in _lines(path)])
    for file, names in keys.items():
        _write(output / file, [f"{name}\n" for name in names])


def _keys(folders: Sequence[Path], file: str) -> list[str]:
    found = [[line.strip() for line in _lines(folder / file) if line.strip()] for folder in folders]
    for folder, names in zip(folders, found, strict=True):
        if sorted(names) != sorted(found[0]):
            raise UserError(
                f"{folder / file}: has {', '.join(names) or 'nothing'}, but {folders[0] / file} has "
                f"{', '.join(found[0]) or 'nothing'}; the directories come from different runs"
            )
    return found[0]


def _sum(paths: Sequence[Path], output: Path) -> None:
    totals: dict[str, np.ndarray] = {}
    for path in paths:
        _require(path)
        with open_file(path) as stream, explained(path, "the statistics of a job"):
            require_small_arrays(stream)
            stats = np.load(stream, allow_pickle=False)
            for key in stats.files:
                totals[key] = totals[key] + stats[key] if key in totals else stats[key]
    with atomic_write(output, "wb") as written:
        np.savez(written, **totals)  # type: ignore[arg-type]  # numpy declares allow_pickle besides the arrays


def _lines(path: Path) -> list[str]:
    _require(path)
    return [f"{line}\n" for line in read_text(path).splitlines()]


def _require(path: Path) -> None:
    if not path.exists():
        raise UserError(f"{path}: no such file; the job that writes it has not finished")


def _utterance(line: str) -> str:
    return (line.split(maxsplit=1) or [""])[0]


def _write(path: Path, lines: Sequence[str]) -> None:
    with atomic_write(path) as stream:
        stream.writelines(lines)
