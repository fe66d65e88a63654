"""What a data directory contains: hours, lengths, sample rates, speakers, words; and what two directories share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tympan.data.audio import AudioError, audio_info, is_pipe, locate
from tympan.data.kaldi_dir import DataDir
from tympan.errors import UserError
from tympan.text.words import is_unspaced

HEADERS = 2000
"""Number of recordings whose header is read; the others are assumed to have the same mean length."""

USUAL_RATE = 16_000
"""Sample rate of most models in Hz, and of a training configuration that names none."""


@dataclass(frozen=True)
class Survey:
    """The content of one data directory."""

    path: Path
    utterances: int
    speakers: frozenset[str]
    seconds: float
    lengths_s: Sequence[float]
    """Lengths of the utterances, or of a sample of them."""
    rates: Mapping[int, int]
    """Number of recordings by sample rate, among those whose header was read."""
    channels: int
    """Largest number of channels of a recording."""
    recordings: frozenset[str]
    sentences: Sequence[str]
    model_rate: int = 0
    """Sample rate of the model, to which recordings of other rates are resampled; 0: that of the recordings."""

    @property
    def hours(self) -> float:
        return self.seconds / 3600

    @property
    def longest_s(self) -> float:
        return max(self.lengths_s)

    @property
    def rate(self) -> int:
        """The sample rate of most recordings."""
        return max(self.rates, key=lambda rate: (self.rates[rate], rate))

    @property
    def trained_rate(self) -> int:
        """The sample rate that the model gets."""
        return self.model_rate or self.rate

    @cached_property
    def words(self) -> Counter[str]:
        return Counter(word for sentence in self.sentences for word in sentence.split())

    @cached_property
    def characters(self) -> Counter[str]:
        return Counter(character for sentence in self.sentences for character in sentence if not character.isspace())

    @property
    def has_spaces(self) -> bool:
        """Whether words are separated by spaces: false if most characters are Chinese or Japanese."""
        dense = sum(count for character, count in self.characters.items() if is_unspaced(character))
        return 2 * dense < self.characters.total()

    def describe(self) -> str:
        """Hours, utterances, speakers, rate and text in one line."""
        amount = f"{self.hours:.2f} h" if self.hours < 100 else f"{self.hours:.0f} h"
        mean_s = self.seconds / max(1, self.utterances)
        return (
            f"{amount}, {self.utterances} utterances of {len(self.speakers)} speakers, "
            f"{mean_s:.1f} s on average, {self.longest_s:.1f} s at most, {self._describe_rates()}, "
            f"{len(self.words)} different words, {len(self.characters)} characters"
        )

    def _describe_rates(self) -> str:
        others = {rate: number for rate, number in self.rates.items() if rate != self.rate}
        if not others:
            return f"{self.rate} Hz"
        return f"{self.rate} Hz ({_of_rates(others, sum(self.rates.values()))})"


def survey(directory: Path) -> Survey:
    """Read the tables of a data directory and the headers of its recordings. UserError if it has no transcripts."""
    data = DataDir.read(directory)
    if not data.text:
        raise UserError(f"{directory} has no text file; a recipe needs transcripts for every set.")
    located = {name: source if is_pipe(source) else locate(source, directory) for name, source in data.wav.items()}
    sources = [source for source in located.values() if not is_pipe(source)]
    if not sources:
        raise UserError(f"{directory / 'wav.scp'}: all recordings are commands. Write the audio to files first.")
    read = sources[:: max(1, len(sources) // HEADERS)]
    try:
        infos = [audio_info(source) for source in read]
    except AudioError as error:
        raise UserError(f"{error}. `tympan validate_data {directory}` lists every fault of the data.") from None
    lengths = [info.duration_s for info in infos]
    mean_s = sum(lengths) / len(lengths)
    seconds = mean_s * len(located)
    if data.segments:
        durations = dict(zip(read, lengths, strict=True))
        lengths = [
            (durations.get(located[segment.recording], mean_s) if segment.end_s is None else segment.end_s)
            - segment.start_s
            for segment in data.segments.values()
        ]
        seconds = sum(length for length in lengths if length > 0)
    return Survey(
        path=directory,
        utterances=len(data.utterances),
        speakers=frozenset(data.utt2spk.values()),
        seconds=seconds,
        lengths_s=lengths,
        rates=Counter(info.rate for info in infos),
        channels=max(info.channels for info in infos),
        recordings=frozenset(located.values()),
        sentences=list(data.text.values()),
    )


def unknown_words(found: Survey, known: Mapping[str, object]) -> Counter[str]:
    """The words of a set that are not among `known`, with their counts."""
    return Counter({word: count for word, count in found.words.items() if word not in known})


def shared(train: Survey, other: Survey) -> list[str]:
    """Warnings about what a set has in common with the training set, and sample rates that differ."""
    lines = []
    recordings = len(train.recordings & other.recordings)
    if recordings:
        lines.append(f"{recordings} of {len(other.recordings)} recordings of {other.path} are also in {train.path}")
    speakers = len(train.speakers & other.speakers)
    if speakers:
        lines.append(
            f"{speakers} of {len(other.speakers)} speakers of {other.path} are also in {train.path}: "
            "the error rate for new speakers will be higher"
        )
    return lines


def common_rate(sets: Sequence[Survey]) -> int:
    """The sample rate to resample all recordings to; 0 if they have one rate that suits a model.

    It is the lowest of the rates that most recordings of a set have: a few recordings of a lower rate must not take a
    part of the band from all. Higher rates than 16 kHz have little more speech in them and make training slower.
    """
    rates = {rate for found in sets for rate in found.rates}
    return min(USUAL_RATE, *(found.rate for found in sets)) if len(rates) > 1 or max(rates) > USUAL_RATE else 0


def low_rates(sets: Sequence[Survey], model_rate: int) -> list[str]:
    """Warnings about recordings with a lower sample rate than the model's."""
    lines = []
    for found in sets:
        low = {rate: number for rate, number in found.rates.items() if rate < model_rate}
        if low:
            listed = ", ".join(f"{rate} Hz" for rate in sorted(low))
            lines.append(
                f"{sum(low.values())} of {sum(found.rates.values())} recordings of {found.path} have a lower sample "
                f"rate than the model's {model_rate} Hz ({listed}): they lack the upper part of the band"
            )
    return lines


def _of_rates(rates: Mapping[int, int], total: int) -> str:
    """`2 of 100 recordings have 8000 Hz`."""
    listed = ", ".join(f"{rate} Hz" for rate in sorted(rates))
    return f"{sum(rates.values())} of {total} recordings have {listed}"


def several_channels(sets: Sequence[Survey]) -> list[str]:
    """A warning about sets that have recordings with more than one channel."""
    stereo = [found for found in sets if found.channels > 1]
    if not stereo:
        return []
    paths = ", ".join(str(found.path) for found in stereo)
    return [
        f"recordings with up to {max(found.channels for found in stereo)} channels in {paths}: their mean is used. If "
        "the speech is in channel N (counted from 0), add the line 'channel: N' to conf/train.yaml; decoding then uses "
        "it too"
    ]
