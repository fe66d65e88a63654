"""Combine several data directories into one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tympan.data.kaldi_dir import DataDir, Table
from tympan.errors import UserError


@dataclass(frozen=True)
class Combined:
    data: DataDir
    left_out: list[str]
    """Files that only some of the directories have."""


def combine(sources: Sequence[DataDir]) -> Combined:
    """Return the union. An id may be in two directories only if it has the same value in both."""
    if not sources:
        raise UserError("no data directories to combine")
    located = [source.located() for source in sources]
    if any(source.has("segments") for source in located):
        located = [source if source.has("segments") else _with_segments(source) for source in located]
    common = [name for name in located[0].tables if all(source.has(name) for source in located)]
    every = {name for source in located for name in source.tables}
    tables: dict[str, Table] = {}
    clashes = []
    for name in common:
        merged: Table = {}
        for source in located:
            for key, value in source.tables[name].items():
                if merged.setdefault(key, value) != value:
                    clashes.append(f"{source.path / name}: '{key}' has another value in an earlier directory")
        tables[name] = merged
    if clashes:
        more = [f"... and {len(clashes) - 10} more"] if len(clashes) > 10 else []
        hint = "`tympan copy_data --utt_prefix ...` gives one of them different ids."
        raise UserError("\n".join([*clashes[:10], *more, hint]))
    return Combined(DataDir(sources[0].path, tables), sorted(every - set(common)))


def _with_segments(data: DataDir) -> DataDir:
    """Describe whole recordings as segments, so that they can be combined with real segments."""
    return DataDir(data.path, {**data.tables, "segments": {key: f"{key} 0 -1" for key in data.wav}})
