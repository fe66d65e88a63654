"""Split the work on a data set into archives. Each is written by one job, and is valid once its index exists.

feats.00001.ark is renamed to its final name first, then feats.00001.index (`utterance offset frames origin`). An
interrupted archive has no index; its utterances are computed again under a new number. The same holds for utterances
whose origin has changed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from tympan.data.ark import ArkWriter
from tympan.data.kaldi_dir import read_table, write_table

logger = logging.getLogger(__name__)

Item = TypeVar("Item")

Places = dict[str, tuple[str, int]]
"""utterance -> (file.ark:offset, frames)"""


@dataclass(frozen=True)
class Shard(Generic[Item]):
    """One archive and its utterances."""

    ark: Path
    items: tuple[Item, ...]

    def __len__(self) -> int:
        return len(self.items)


def plan_shards(items: Sequence[Item], folder: Path, *, size: int) -> list[Shard[Item]]:
    """Split the items into archives with unused names; remove incomplete files of killed jobs."""
    for path in folder.glob(".feats.*.part") if folder.is_dir() else ():
        path.unlink()
    taken = [int(path.name.split(".")[1]) for path in folder.glob("feats.*.ark")] if folder.is_dir() else []
    first = max(taken, default=0) + 1
    starts = range(0, len(items), max(1, size))
    return [
        Shard(folder / f"feats.{number:05d}.ark", tuple(items[start : start + max(1, size)]))
        for number, start in enumerate(starts, first)
    ]


def seal(path: Path, ark: ArkWriter, origins: Mapping[str, str]) -> Places:
    """Write the index of a finished archive. `origins` describes the source of each utterance."""
    write_table(
        path.with_suffix(".index"),
        {key: f"{start} {ark.frames[key]} {origins[key]}" for key, start in ark.offsets.items()},
    )
    return {key: (f"{path}:{start}", ark.frames[key]) for key, start in ark.offsets.items()}


def finished(folder: Path, origins: Mapping[str, str]) -> Places:
    """Utterances in finished archives whose origin has not changed."""
    found: Places = {}
    for index in sorted(folder.glob("feats.*.index")) if folder.is_dir() else ():
        ark = index.with_suffix(".ark")
        if not ark.exists():
            logger.warning("%s is missing; its utterances are computed again", ark)
            index.unlink()
            continue
        for key, value in read_table(index).items():
            start, frames, *origin = value.split(" ", 2)
            if origin == [origins.get(key)]:
                found[key] = (f"{ark}:{start}", int(frames))
    return found


def write_places(out_dir: Path, places: Places) -> None:
    """feats.scp and utt2num_frames, sorted."""
    write_table(out_dir / "feats.scp", {key: places[key][0] for key in sorted(places)})
    write_table(out_dir / "utt2num_frames", {key: places[key][1] for key in sorted(places)})


def remove_archives(out_dir: Path) -> None:
    """Remove the archives of an earlier run."""
    for path in [*(out_dir / "archive").glob("feats.*"), *(out_dir / "archive").glob(".feats.*.part")]:
        path.unlink()
    for name in ("feats.scp", "utt2num_frames", "features.yaml"):
        (out_dir / name).unlink(missing_ok=True)
