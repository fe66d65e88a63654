"""Speed perturbation of a data directory: writes the audio at other speeds, with ids such as sp0.9-ID."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import soundfile

from tympan.data.audio import is_pipe, read_audio, split_ark
from tympan.data.combine import combine
from tympan.data.kaldi_dir import DataDir, Segment
from tympan.data.rename import Renaming, affix, rename
from tympan.data.waveform_effects import change_speed
from tympan.errors import UserError
from tympan.runtime.atomic import atomic_write
from tympan.runtime.executor import map_jobs

_CHUNK = 20


@dataclass(frozen=True)
class PerturbOptions:
    speeds: tuple[float, ...] = (0.9, 1.0, 1.1)
    audio_format: Literal["flac", "wav"] = "flac"
    prefix_unperturbed: bool = True
    """Whether speed 1.0 is renamed to sp1.0-ID, as in the AISHELL recipe; ESPnet2's recipes do not rename it."""
    allow_pipes: bool = False


def perturb_speed(
    data: DataDir,
    out_dir: Path,
    options: PerturbOptions,
    *,
    nj: int = 1,
    executor: Literal["local", "dask"] = "local",
    dask_address: str | None = None,
) -> DataDir:
    """Write a data directory with every utterance at every speed; audio goes to `out_dir/audio/SPEED`.

    Speed 1.0 refers to the original audio. Files of an earlier run are kept if their source has not changed, that is,
    if both have the same date. The output of a command is always read again.
    """
    _check(data, options)
    located = data.located()
    folder = Path(os.path.abspath(out_dir)) / "audio"
    jobs = [
        (source, str(_target(folder, recording, speed, options.audio_format)), speed)
        for speed in options.speeds
        if speed != 1.0
        for recording, source in located.wav.items()
    ]
    chunks = [jobs[start : start + _CHUNK] for start in range(0, len(jobs), _CHUNK)]
    job = partial(_perturb_recordings, options.allow_pipes)
    for _ in map_jobs(
        job,
        chunks,
        nj=nj,
        description=f"speeds of {data.path}",
        executor=executor,
        dask_address=dask_address,
        weight=len,
        unit="file",
    ):
        pass
    versions = [_at_speed(located, folder, speed, options) for speed in options.speeds]
    return combine(versions).data.write(out_dir)


def _check(data: DataDir, options: PerturbOptions) -> None:
    if not data.wav:
        raise UserError(f"{data.path}: there is no wav.scp, so there is no audio to perturb")
    if not options.speeds or any(not 0.1 <= speed <= 10 for speed in options.speeds):
        raise UserError(f"--speeds {list(options.speeds)}: expected factors from 0.1 to 10, such as 0.9 1.0 1.1")
    if len(set(options.speeds)) < len(options.speeds):
        raise UserError(f"--speeds {list(options.speeds)}: a factor is repeated")
    pipes = [key for key, source in data.wav.items() if is_pipe(source)]
    if pipes and not options.allow_pipes:
        raise UserError(
            f"{data.path / 'wav.scp'}: '{pipes[0]}' would run a program to get the audio. "
            "Pass --allow_pipes true if you trust this data directory."
        )


def _at_speed(data: DataDir, folder: Path, speed: float, options: PerturbOptions) -> DataDir:
    tables = {
        name: dict(table)
        for name, table in data.tables.items()
        if name not in ("feats.scp", "cmvn.scp", "vad.scp", "utt2num_frames")
    }
    for name in ("utt2dur", "reco2dur"):
        if name in tables:
            tables[name] = {key: f"{float(value) / speed:.10g}" for key, value in tables[name].items()}
    if "segments" in tables:
        tables["segments"] = {key: str(_faster(segment, speed)) for key, segment in data.segments.items()}
    tables["utt2uniq"] = {key: data.tables.get("utt2uniq", {}).get(key, key) for key in data.utterances}
    if speed != 1.0:
        tables["wav.scp"] = {key: str(_target(folder, key, speed, options.audio_format)) for key in data.wav}
    perturbed = DataDir(data.path, tables)
    if speed == 1.0 and not options.prefix_unperturbed:
        return perturbed
    new_name = affix(f"sp{speed}-")
    return rename(perturbed, Renaming(utterance=new_name, speaker=new_name, recording=new_name))


def _faster(segment: Segment, speed: float) -> Segment:
    end_s = None if segment.end_s is None else segment.end_s / speed
    return Segment(segment.recording, segment.start_s / speed, end_s)


def _target(folder: Path, recording: str, speed: float, audio_format: str) -> Path:
    # An id may contain a slash, which must not lead to a path outside the folder. Two ids never have the same file.
    name = recording.replace("%", "%25").replace("/", "%2F")
    return folder / f"sp{speed}" / f"{name}.{audio_format}"


def _perturb_recordings(allow_pipes: bool, jobs: Sequence[tuple[str, str, float]]) -> None:
    for source, target, speed in jobs:
        if _is_current(source, target):
            continue
        audio = read_audio(source, allow_pipes=allow_pipes)
        samples = np.clip(change_speed(audio.samples, speed), -1.0, 1.0)
        content = io.BytesIO()  # soundfile prints a traceback if it can't write
        soundfile.write(content, samples, audio.rate, format=Path(target).suffix[1:], subtype="PCM_16")
        with atomic_write(target, "wb") as stream:
            stream.write(content.getvalue())
        if not is_pipe(source):
            date = os.stat(split_ark(source)[0]).st_mtime_ns
            os.utime(target, ns=(date, date))


def _is_current(source: str, target: str) -> bool:
    """Return whether the target was made from this source. A missing source is reported when it is read."""
    path = split_ark(source)[0]
    if is_pipe(source) or not (os.path.exists(target) and os.path.exists(path)):
        return False
    return os.stat(target).st_mtime_ns == os.stat(path).st_mtime_ns
