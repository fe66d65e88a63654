"""Compute the features of a data directory and write them to archives: in parallel, restartable, atomic."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from tympan.data.ark import write_ark
from tympan.data.audio import Audio, AudioError, is_pipe, read_audio
from tympan.data.kaldi_dir import DataDir, Segment
from tympan.errors import UserError
from tympan.features.extractor import FeatureOptions, compute_features, describe_difference, load_options, save_options
from tympan.features.shards import Places, Shard, finished, plan_shards, seal, write_places
from tympan.runtime.executor import map_jobs

Part = tuple[str, str, Segment]
"""(utterance, audio source, segment of it)"""


@dataclass(frozen=True)
class Summary:
    """Counts of a run, and its failures: utterance -> reason."""

    made: int
    kept: int
    frames: int
    too_short: dict[str, str]
    unreadable: dict[str, str]


@dataclass(frozen=True)
class _ShardResult:
    places: Places
    too_short: dict[str, str]
    unreadable: dict[str, str]


def make_archives(
    data: DataDir,
    out_dir: Path,
    options: FeatureOptions,
    *,
    nj: int = 1,
    channel: int | None = None,
    allow_pipes: bool = False,
    compression_method: int | None = None,
    utterances_per_archive: int = 500,
    executor: Literal["local", "dask"] = "local",
    dask_address: str | None = None,
) -> Summary:
    """Write feats.scp, utt2num_frames and features.yaml to `out_dir`, archives to `out_dir/archive`.

    Archives of an earlier run are kept. Only utterances that are in none of them, or whose audio is now another file,
    segment or channel, are computed.
    """
    if not data.wav:
        raise UserError(f"{data.path}: there is no wav.scp, so there is no audio to compute features from")
    if not allow_pipes and any(map(is_pipe, data.wav.values())):
        first = next(key for key, source in data.wav.items() if is_pipe(source))
        raise UserError(
            f"{data.path / 'wav.scp'}: '{first}' would run a program to get the audio. "
            "Pass --allow_pipes true if you trust this data directory."
        )
    _check_same_options(out_dir, options)
    folder = Path(os.path.abspath(out_dir)) / "archive"
    parts = list(data.parts())
    done = finished(folder, {part[0]: _origin(part, channel) for part in parts})
    missing = [part for part in parts if part[0] not in done]
    save_options(out_dir / "features.yaml", options)
    job = partial(
        _write_shard, options, channel=channel, allow_pipes=allow_pipes, compression_method=compression_method
    )
    places = dict(done)
    too_short: dict[str, str] = {}
    unreadable: dict[str, str] = {}
    shards = plan_shards(missing, folder, size=min(utterances_per_archive, -(-len(missing) // nj)))
    for result in map_jobs(
        job,
        shards,
        nj=nj,
        description=f"{options.feats_type} of {data.path}",
        executor=executor,
        dask_address=dask_address,
        weight=len,
        unit="utt",
    ):
        places.update(result.places)
        too_short.update(result.too_short)
        unreadable.update(result.unreadable)
    if places:
        write_places(out_dir, places)
        _copy_labels(data, out_dir, places)
    frames = sum(count for _, count in places.values())
    return Summary(len(places) - len(done), len(done), frames, too_short, unreadable)


def _check_same_options(out_dir: Path, options: FeatureOptions) -> None:
    earlier = out_dir / "features.yaml"
    if not earlier.exists():
        return
    difference = describe_difference(load_options(earlier), _as_stored(options))
    if difference:
        raise UserError(
            f"{out_dir} contains features that were computed with other options (earlier / now: {difference}). "
            "Choose another directory, or pass --overwrite true."
        )


def _as_stored(options: FeatureOptions) -> FeatureOptions:
    """Only the options that these features depend on: the others are not stored."""
    default = FeatureOptions()
    if options.feats_type == "mfcc":
        return replace(options, fbank=default.fbank, pitch=default.pitch, pitch_post=default.pitch_post)
    if options.feats_type == "fbank":
        return replace(options, mfcc=default.mfcc, pitch=default.pitch, pitch_post=default.pitch_post)
    return replace(options, mfcc=default.mfcc)


def _write_shard(
    options: FeatureOptions,
    shard: Shard[Part],
    *,
    channel: int | None,
    allow_pipes: bool,
    compression_method: int | None,
) -> _ShardResult:
    """Write one archive, then its index: an archive is valid only if its index exists."""
    too_short: dict[str, str] = {}
    unreadable: dict[str, str] = {}
    with write_ark(shard.ark, compression_method=compression_method) as ark:
        for utterance, audio in _recordings(shard.items, channel, allow_pipes, unreadable):
            features = compute_features(audio, options, utterance=utterance)
            if len(features):
                ark.write(utterance, features)
            else:
                too_short[utterance] = (
                    f"{audio.duration_s:.4f} s is shorter than one frame (--frame-length is "
                    f"{options.frame.frame_length:g} ms)"
                )
    origins = {part[0]: _origin(part, channel) for part in shard.items}
    return _ShardResult(seal(shard.ark, ark, origins), too_short, unreadable)


def _origin(part: Part, channel: int | None) -> str:
    """The origin of an utterance's features, to detect different audio with the same id."""
    _, source, segment = part
    place = source if is_pipe(source) else os.path.abspath(source)
    return f"channel {channel or 0} {segment} {place}"


def _recordings(
    parts: Sequence[Part], channel: int | None, allow_pipes: bool, unreadable: dict[str, str]
) -> Iterator[tuple[str, Audio]]:
    """The audio of each segment. A command runs once for consecutive segments of the same recording."""
    piped: tuple[str, Audio] | None = None
    for utterance, source, segment in parts:
        try:
            if is_pipe(source):
                if piped is None or piped[0] != source:
                    piped = (source, read_audio(source, channel=channel, allow_pipes=allow_pipes))
                audio = _cut(piped[1], segment)
            else:
                audio = read_audio(source, channel=channel, start_s=segment.start_s, end_s=segment.end_s)
        except AudioError as error:
            unreadable[utterance] = str(error)
            continue
        yield utterance, audio


def _cut(audio: Audio, segment: Segment) -> Audio:
    first = round(segment.start_s * audio.rate)
    last = None if segment.end_s is None else round(segment.end_s * audio.rate)
    return Audio(audio.samples[first:last], audio.rate)


def _copy_labels(data: DataDir, out_dir: Path, keys: Places) -> None:
    """Copy text, utt2spk and similar files next to the features, for the utterances that have features."""
    if out_dir.resolve() == data.path.resolve():
        return
    kept = data.keep(keys)
    labels = {
        name: table
        for name, table in kept.tables.items()
        if name not in ("wav.scp", "segments", "feats.scp", "utt2num_frames", "cmvn.scp", "vad.scp", "reco2dur")
    }
    DataDir(data.path, labels).write(out_dir, keeps_others=True)
