"""Find all faults of a data directory in one pass, each with its file and line."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from tympan.data.audio import AudioError, AudioInfo, check_audio, is_pipe, locate, read_audio, split_ark
from tympan.data.kaldi_dir import kind_of, known_files, parse_segment
from tympan.data.table_faults import Fault, ScannedTable, scan_table
from tympan.errors import UserError
from tympan.runtime.executor import map_jobs

_CHUNK = 50
_OVERSHOOT_S = 0.5
"""Seconds by which a segment may exceed its recording, as in Kaldi's extract-segments."""
_DURATION_TOLERANCE_S = 0.1

Tables = dict[str, ScannedTable]
Infos = dict[str, AudioInfo]


@dataclass(frozen=True)
class Report:
    """The content of a data directory, and its faults sorted by file and line."""

    path: Path
    faults: list[Fault]
    tables: Tables
    infos: Infos
    """Header information of the readable recordings."""
    is_sampled: bool = False
    """Whether `infos` are those of a part of the recordings."""

    @property
    def errors(self) -> list[Fault]:
        return [fault for fault in self.faults if not fault.is_warning]

    def kinds(self) -> Counter[str]:
        return Counter(fault.kind for fault in self.faults)

    def describe(self) -> str:
        """Describe utterances, speakers, hours and sample rates in one line."""
        utterances = len(_utterance_table(self.tables).entries)
        speakers = len(set(self.tables["utt2spk"].entries.values())) if "utt2spk" in self.tables else 0
        text = f"{self.path}: {utterances} utterances, {speakers} speakers"
        if self.infos:
            hours = sum(info.duration_s for info in self.infos.values()) / 3600
            if self.is_sampled:
                hours *= len(self.tables["wav.scp"].entries) / len(self.infos)
            rates = ", ".join(f"{rate} Hz" for rate in sorted({info.rate for info in self.infos.values()}))
            text += f", {hours:.2f} h of audio at {rates}"
            channels = sorted({info.channels for info in self.infos.values()})
            text += "" if channels == [1] else f", {' or '.join(map(str, channels))} channels"
        return text


FIXES = "sorts the files, removes carriage returns and drops entries that can't be used; it keeps a copy"
"""What `tympan fix_data` does."""


def validate(
    directory: Path,
    *,
    nj: int = 1,
    audio: bool = True,
    most_decoded: int | None = None,
    allow_pipes: bool = False,
    executor: Literal["local", "dask"] = "local",
    dask_address: str | None = None,
) -> Report:
    """Check a data directory; with `audio`, also every recording (compressed ones are decoded completely).

    Of more than `most_decoded` recordings, only so many are read. The others only have to exist.
    """
    if directory.is_file():
        raise UserError(f"{directory}: not a data directory; `tympan manifest_data` makes one from a manifest")
    if not directory.is_dir():
        raise UserError(f"{directory}: no such data directory")
    tables = {name: scan_table(directory / name) for name in known_files(directory)}
    if "wav.scp" not in tables and "feats.scp" not in tables:
        raise UserError(f"{directory}: not a data directory: it has neither wav.scp nor feats.scp")
    faults = [fault for table in tables.values() for fault in table.faults]
    if not _utterance_table(tables).entries:
        faults.append(Fault(str(_utterance_table(tables).path), 0, "empty-directory", "the file lists no utterances"))
    faults += _missing_files(directory, tables)
    faults += _cross_faults(tables)
    faults += _text_faults(tables)
    faults += _speaker_faults(tables)
    faults += _place_faults(directory, tables)
    infos: Infos = {}
    step = 1
    if "wav.scp" in tables:
        wav = tables["wav.scp"]
        step = 1 if most_decoded is None else max(1, math.ceil(len(wav.entries) / most_decoded))
        faults += _missing_recordings(directory, wav) if audio and step > 1 else []
        different: list[str] = []
        for fault, found, differ in _audio_faults(
            directory,
            wav,
            step=step,
            nj=nj,
            audio=audio,
            allow_pipes=allow_pipes,
            executor=executor,
            dask_address=dask_address,
        ):
            faults += fault
            infos.update(found)
            different += differ
        faults += _channel_faults(wav, infos, different)
        faults += _rate_faults(wav, infos)
        faults += _length_faults(tables, infos)
    return Report(directory, sorted(set(faults)), tables, infos, is_sampled=step > 1)


def _utterance_table(tables: Tables) -> ScannedTable:
    """Return the file that lists the utterances."""
    return next(tables[name] for name in ("segments", "wav.scp", "feats.scp") if name in tables)


def _missing_files(directory: Path, tables: Tables) -> Iterator[Fault]:
    for name in ("text", "utt2spk"):
        if name not in tables:
            yield Fault(str(directory / name), 0, "missing-file", "there is no such file", is_warning=True)
    if "segments" in tables and "wav.scp" not in tables:
        yield Fault(str(directory / "wav.scp"), 0, "missing-file", "there is no such file, although there are segments")


def _cross_faults(tables: Tables) -> Iterator[Fault]:
    """Ids that are in one file but not in another."""
    base = _utterance_table(tables)
    for name, table in tables.items():
        if table is base or kind_of(name) != "utterance":
            continue
        for key in table.entries.keys() - base.entries.keys():
            yield table.fault(key, "missing-id", f"utterance '{key}' is not in {base.path.name}")
        for key in base.entries.keys() - table.entries.keys():
            yield base.fault(key, "missing-id", f"utterance '{key}' is not in {name}")
    if "segments" in tables and "wav.scp" in tables:
        recordings = tables["wav.scp"].entries
        used = set()
        for key, value in tables["segments"].entries.items():
            recording = parse_segment(value, "").recording
            used.add(recording)
            if recording not in recordings:
                yield tables["segments"].fault(
                    key, "missing-id", f"recording '{recording}' of utterance '{key}' is not in wav.scp"
                )
        for recording in recordings.keys() - used:
            yield tables["wav.scp"].fault(
                recording, "unused", f"no segment belongs to recording '{recording}'", is_warning=True
            )


def _text_faults(tables: Tables) -> Iterator[Fault]:
    for key, value in tables["text"].entries.items() if "text" in tables else ():
        if not value.strip():
            yield tables["text"].fault(key, "empty-text", f"utterance '{key}' has no text")


def _speaker_faults(tables: Tables) -> Iterator[Fault]:
    if "utt2spk" not in tables:
        return
    utt2spk = tables["utt2spk"]
    speakers: dict[str, list[str]] = {}
    for key, speaker in utt2spk.entries.items():
        speakers.setdefault(speaker, []).append(key)
    ordered = [utt2spk.entries[key] for key in sorted(utt2spk.entries)]
    for before, after, key in zip(ordered, ordered[1:], sorted(utt2spk.entries)[1:], strict=False):
        if after < before:
            yield utt2spk.fault(
                key,
                "speaker-order",
                f"'{key}' of speaker '{after}' comes after utterances of '{before}'; Kaldi requires ids to begin "
                "with the "
                "speaker",
                is_warning=True,
            )
            break
    for name, table in tables.items():
        if kind_of(name) != "speaker" or name == "cmvn.scp":
            continue
        is_index = name == "spk2utt"  # a speaker may be missing in the other files: utterances don't depend on them
        kind = "spk2utt" if is_index else "missing-id"
        for speaker in table.entries.keys() - speakers.keys():
            yield table.fault(speaker, kind, f"speaker '{speaker}' is not in utt2spk")
        for speaker in speakers.keys() - table.entries.keys():
            message = f"speaker '{speaker}' is not in {name}"
            yield utt2spk.fault(speakers[speaker][0], kind, message, is_warning=not is_index)
    for speaker, value in tables["spk2utt"].entries.items() if "spk2utt" in tables else ():
        if speaker in speakers and sorted(value.split()) != sorted(speakers[speaker]):
            yield tables["spk2utt"].fault(
                speaker, "spk2utt", f"the utterances of speaker '{speaker}' differ from utt2spk"
            )


def _place_faults(directory: Path, tables: Tables) -> Iterator[Fault]:
    """Check the archives that feats.scp and similar files refer to."""
    sizes: dict[str, int] = {}
    for name in ("feats.scp", "cmvn.scp", "vad.scp"):
        for key, place in tables[name].entries.items() if name in tables else ():
            if is_pipe(place):
                yield tables[name].fault(key, "pipe", f"'{key}' would run a command: '{place}'")
                continue
            path, offset = split_ark(locate(place, directory))
            if path not in sizes:
                sizes[path] = Path(path).stat().st_size if Path(path).is_file() else -1
            if sizes[path] < 0:
                yield tables[name].fault(key, "missing-archive", f"'{key}': there is no such file: {path}")
            elif (offset or 0) >= sizes[path]:
                yield tables[name].fault(key, "missing-archive", f"'{key}': {path} ends before byte {offset}")


def _audio_faults(
    directory: Path,
    wav: ScannedTable,
    *,
    step: int,
    nj: int,
    audio: bool,
    allow_pipes: bool,
    executor: Literal["local", "dask"],
    dask_address: str | None,
) -> Iterator[tuple[list[Fault], Infos, list[str]]]:
    """Yield faults, headers, and the recordings whose channels differ. Every `step`-th recording is read."""
    refused = {key for key, source in wav.entries.items() if is_pipe(source) and not allow_pipes}
    yield (
        [
            wav.fault(
                key,
                "pipe",
                f"'{key}' would run a command; pass --allow_pipes true if you trust it: '{wav.entries[key]}'",
            )
            for key in refused
        ],
        {},
        [],
    )
    if not audio:
        return
    items = [(key, source) for key, source in list(wav.entries.items())[::step] if key not in refused]
    chunks = [items[start : start + _CHUNK] for start in range(0, len(items), _CHUNK)]
    job = partial(_check_recordings, directory, allow_pipes)
    for infos, problems, different in map_jobs(
        job,
        chunks,
        nj=nj,
        description=f"audio of {directory}",
        executor=executor,
        dask_address=dask_address,
        weight=len,
        unit="file",
    ):
        yield [wav.fault(key, kind, f"'{key}': {message}") for key, kind, message in problems], infos, different


def _missing_recordings(directory: Path, wav: ScannedTable) -> Iterator[Fault]:
    for key, source in wav.entries.items():
        if not is_pipe(source) and not os.path.exists(split_ark(location := locate(source, directory))[0]):
            yield wav.fault(key, "missing-audio", f"'{key}': {location}: there is no such file")


def _check_recordings(
    directory: Path, allow_pipes: bool, items: Sequence[tuple[str, str]]
) -> tuple[Infos, list[tuple[str, str, str]], list[str]]:
    infos: Infos = {}
    problems = []
    different = []
    for key, source in items:
        try:
            info = check_audio(source, allow_pipes=allow_pipes, base=directory)
            if info.channels > 1:
                mean = read_audio(source, channel="mean", allow_pipes=allow_pipes, base=directory)
                different += [key] if mean.channels_differ else []
        except AudioError as error:
            problems.append((key, f"{error.problem}-audio", str(error)))
            continue
        if info.frames == 0:
            problems.append((key, "empty-audio", f"{source}: the recording has no samples"))
        infos[key] = info
    return infos, problems, different


def _channel_faults(wav: ScannedTable, infos: Infos, different: Sequence[str]) -> Iterator[Fault]:
    if different:
        several = sum(info.channels > 1 for info in infos.values())
        yield Fault(
            str(wav.path),
            0,
            "different-channels",
            f"the channels of {len(different)} of {several} multi-channel recordings differ, such as those of "
            f"'{different[0]}'; training and decoding use their mean. To use channel N only, "
            "counted from 0, add 'channel: N' to the training configuration (in a recipe, conf/train.yaml)",
            is_warning=True,
        )


def _rate_faults(wav: ScannedTable, infos: Infos) -> Iterator[Fault]:
    """Recordings whose sample rate or number of channels differs from the majority."""
    for what, values in (
        ("sample-rate", {key: info.rate for key, info in infos.items()}),
        ("channels", {key: info.channels for key, info in infos.items()}),
    ):
        counts = Counter(values.values())
        if len(counts) < 2:
            continue
        usual, number = counts.most_common(1)[0]
        unit = " Hz" if what == "sample-rate" else " channels"
        for key, value in values.items():
            if value != usual:
                yield wav.fault(
                    key,
                    what,
                    f"recording '{key}' has {value}{unit}, but {number} of {len(values)} have {usual}{unit}",
                    is_warning=what == "channels",  # training and decoding average the channels
                )


def _length_faults(tables: Tables, infos: Infos) -> Iterator[Fault]:
    """Segments that exceed their recording, and durations that differ from the audio."""
    durations = {key: info.duration_s for key, info in infos.items()}
    if "segments" in tables:
        recordings, durations = durations, {}
        for key, value in tables["segments"].entries.items():
            segment = parse_segment(value, "")
            if segment.recording not in recordings:
                continue
            length = recordings[segment.recording]
            end = length if segment.end_s is None else segment.end_s
            if end > length + _OVERSHOOT_S or segment.start_s >= length:
                yield tables["segments"].fault(
                    key,
                    "segment",
                    f"'{key}' ends at {end:g} s, but recording '{segment.recording}' ends at {length:g} s",
                )
            durations[key] = min(end, length) - segment.start_s
    yield from _duration_faults(tables.get("utt2dur"), durations)
    yield from _duration_faults(tables.get("reco2dur"), {key: info.duration_s for key, info in infos.items()})


def _duration_faults(table: ScannedTable | None, durations: dict[str, float]) -> Iterable[Fault]:
    for key, value in table.entries.items() if table is not None else ():
        if key in durations and abs(float(value) - durations[key]) > _DURATION_TOLERANCE_S:
            assert table is not None
            yield table.fault(key, "duration", f"'{key}' has {value} s here, but its audio has {durations[key]:.3f} s")
