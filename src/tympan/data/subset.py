"""Select utterances of a data directory, in the same way on every run."""

from __future__ import annotations

from typing import Literal

from tympan.data.audio import audio_info
from tympan.data.kaldi_dir import DataDir
from tympan.data.seeds import rng_for
from tympan.errors import UserError

How = Literal["even", "first", "last", "shortest", "random", "per_speaker"]


def choose(data: DataDir, number: int, how: How, *, seed: int = 0) -> list[str]:
    """Select `number` utterances (per speaker with per_speaker), sorted; all of them if there are fewer."""
    if number < 1:
        raise UserError(f"--number {number}: must be 1 or more")
    utterances = sorted(data.utterances)
    if how == "per_speaker":
        if not data.utt2spk:
            raise UserError(f"{data.path}: --how per_speaker needs utt2spk")
        return sorted(key for ids in data.spk2utt.values() for key in sorted(ids)[:number])
    if number >= len(utterances):
        return utterances
    if how == "first":
        return utterances[:number]
    if how == "last":
        return utterances[-number:]
    if how == "even":
        return [utterances[index * len(utterances) // number] for index in range(number)]
    if how == "random":
        order = rng_for(seed, "subset").permutation(len(utterances))[:number]
        return sorted(utterances[index] for index in order)
    lengths = _lengths(data)
    return sorted(sorted(utterances, key=lambda key: (lengths[key], key))[:number])


def _lengths(data: DataDir) -> dict[str, float]:
    """Return frames or seconds from the first available file. Audio headers come last, because reading them is slow."""
    for table in (data.utt2num_frames, data.utt2dur):
        if table:
            missing = [key for key in data.utterances if key not in table]
            if missing:
                raise UserError(f"{data.path}: '{missing[0]}' has no length in utt2num_frames or utt2dur")
            return dict(table)
    if data.has("segments") and all(segment.end_s is not None for segment in data.segments.values()):
        return {key: (segment.end_s or 0.0) - segment.start_s for key, segment in data.segments.items()}
    durations: dict[str, float] = {}
    lengths = {}
    for utterance, source, segment in data.parts():
        if source not in durations:
            durations[source] = audio_info(source).duration_s
        lengths[utterance] = (durations[source] if segment.end_s is None else segment.end_s) - segment.start_s
    return lengths
