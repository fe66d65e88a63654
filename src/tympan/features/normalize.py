"""CMVN over whole feature sets: compute and apply statistics in parallel."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from tympan.data.ark import read_matrix, write_ark
from tympan.data.audio import locate
from tympan.data.kaldi_dir import read_table, write_table
from tympan.errors import UserError
from tympan.features.arrays import Floats
from tympan.features.cmvn import add_stats, apply_cmvn, cmvn_stats, read_stats
from tympan.features.deltas import add_deltas
from tympan.features.shards import Places, Shard, plan_shards, remove_archives, seal, write_places
from tympan.runtime.executor import map_jobs

_CHUNK = 500


def read_feats(source: Path) -> dict[str, str]:
    """utterance -> location, from a feats.scp or a directory with one. Paths are resolved to be valid from here."""
    scp = source / "feats.scp" if source.is_dir() else source
    return {key: locate(place, scp.parent) for key, place in read_table(scp).items()}


def gather_stats(
    feats: Mapping[str, str], group_of: Mapping[str, str] | None = None, *, nj: int = 1, description: str = "statistics"
) -> dict[str, Floats]:
    """Statistics per group of utterances; without `group_of` all of them form the group "global".

    Sums are computed in a fixed order, so that they don't depend on the number of jobs.
    """
    items = [(group_of[key] if group_of else "global", place) for key, place in feats.items()]
    total: dict[str, Floats] = {}
    for part in map_jobs(_gather, _chunks(items), nj=nj, description=description, weight=len, unit="utt"):
        for group, stats in part.items():
            total[group] = add_stats(total[group], stats) if group in total else stats
    if not total:
        raise UserError("there are no features to compute statistics from")
    return total


def write_stats_ark(path: Path, stats: Mapping[str, Floats]) -> None:
    """Write statistics per speaker or utterance: an archive, and `.scp` next to it."""
    with write_ark(path) as ark:
        for key in sorted(stats):
            ark.write(key, stats[key])
    write_table(
        path.with_suffix(".scp"), {key: f"{os.path.abspath(path)}:{start}" for key, start in ark.offsets.items()}
    )


def normalize_feats(
    feats: Mapping[str, str],
    out_dir: Path,
    *,
    cmvn: Path | None,
    utt2spk: Mapping[str, str] | None = None,
    norm_means: bool = True,
    norm_vars: bool = True,
    do_delta: bool = False,
    compression_method: int | None = None,
    nj: int = 1,
    utterances_per_archive: int = _CHUNK,
) -> Places:
    """Apply CMVN (then deltas) and write feats.scp and archives to `out_dir`.

    `cmvn` is one matrix for all, or a .scp with one per speaker or utterance; None: normalize each utterance by itself.
    """
    stats: Floats | dict[str, str] | None = None
    if cmvn is not None:
        stats = _stats_by_key(cmvn, feats, utt2spk) if cmvn.suffix == ".scp" else read_stats(cmvn)
    remove_archives(out_dir)
    folder = Path(os.path.abspath(out_dir)) / "archive"
    shards = plan_shards(list(feats.items()), folder, size=min(utterances_per_archive, -(-len(feats) // nj)))
    job = partial(
        _normalize_shard,
        stats,
        norm_means=norm_means,
        norm_vars=norm_vars,
        do_delta=do_delta,
        compression_method=compression_method,
    )
    places: Places = {}
    for part in map_jobs(job, shards, nj=nj, description="normalize", weight=len, unit="utt"):
        places.update(part)
    write_places(out_dir, places)
    return places


def _stats_by_key(scp: Path, feats: Mapping[str, str], utt2spk: Mapping[str, str] | None) -> dict[str, str]:
    table = {key: locate(place, scp.parent) for key, place in read_table(scp).items()}
    found = {}
    for key in feats:
        group = key if key in table else (utt2spk or {}).get(key, key)
        if group not in table:
            raise UserError(f"{scp}: no statistics for '{key}', neither for its id nor for its speaker in utt2spk")
        found[key] = table[group]
    return found


def _chunks(items: Sequence[tuple[str, str]]) -> list[Sequence[tuple[str, str]]]:
    return [items[start : start + _CHUNK] for start in range(0, len(items), _CHUNK)]


def _gather(items: Sequence[tuple[str, str]]) -> dict[str, Floats]:
    groups: dict[str, list[str]] = {}
    for group, place in items:
        groups.setdefault(group, []).append(place)
    return {group: cmvn_stats(map(read_matrix, places)) for group, places in groups.items()}


def _normalize_shard(
    stats: Floats | dict[str, str] | None,
    shard: Shard[tuple[str, str]],
    *,
    norm_means: bool,
    norm_vars: bool,
    do_delta: bool,
    compression_method: int | None,
) -> Places:
    with write_ark(shard.ark, compression_method=compression_method) as ark:
        for key, features, own in _with_stats(stats, shard):
            normal = apply_cmvn(features, own, norm_means=norm_means, norm_vars=norm_vars)
            ark.write(key, add_deltas(normal) if do_delta else normal)
    return seal(shard.ark, ark, dict(shard.items))


def _with_stats(
    stats: Floats | dict[str, str] | None, shard: Shard[tuple[str, str]]
) -> Iterator[tuple[str, Floats, Floats]]:
    for key, place in shard.items:
        features = read_matrix(place)
        if stats is None:
            yield key, features, cmvn_stats([features])
        elif isinstance(stats, dict):
            yield key, features, read_stats(stats[key])
        else:
            yield key, features, stats
