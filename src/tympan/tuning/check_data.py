"""Check the data of a fine-tuning run before anything is computed: sample rates, transcripts, overlap, amount."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tympan.data.kaldi_dir import DataDir, Segment
from tympan.data.readers import Context, value_info, value_seconds
from tympan.errors import UserError

LITTLE_S, VERY_LITTLE_S = 600.0, 60.0
FEW_DEV = 50


@dataclass(frozen=True)
class DataSet:
    """A data directory with its number of utterances and its duration."""

    name: str
    data: DataDir
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.name}: {len(self.data.utterances)} utterances, {self.seconds / 60:.1f} minutes ({self.data.path})"
        )


def read_checked(name: str, path: Path, *, rate: int, wants_features: bool) -> DataSet:
    """Read a data directory and check that each recording has the sample rate of the model."""
    data = DataDir.read(path)
    if not data.text:
        raise UserError(f"--{name}_dir {path}: has no text file; fine-tuning needs transcripts")
    lacking = [utterance for utterance in data.utterances if utterance not in data.text]
    if len(lacking) == len(data.utterances):
        raise UserError(f"--{name}_dir {path}: no utterance has a transcript in text (such as '{lacking[0]}')")
    if wants_features and name in ("train", "dev", "replay") and not data.has("feats.scp"):
        raise UserError(
            f"--{name}_dir {path}: the model was trained on stored features, and there is no feats.scp; make it with "
            "`tympan make_features` and the settings of the model"
        )
    path_name, data_type = speech_file(data, wants_features=wants_features)
    context = Context(base=data.path)
    seconds, rates = 0.0, Counter[int]()
    for utterance, value in data.tables[path_name].items():
        try:
            if data_type == "kaldi_ark":
                seconds += value_seconds(data_type, value, context)
                continue
            info = value_info(data_type, value, context)
        except UserError as error:
            raise UserError(f"{data.path / path_name}: utterance '{utterance}': {error}") from None
        seconds += info.frames / info.rate
        rates[info.rate] += 1
    if name in ("train", "dev", "replay") and set(rates) - {rate}:
        raise UserError(_other_rate(name, path, rates, rate))
    return DataSet(name, data, seconds)


def speech_file(data: DataDir, *, wants_features: bool) -> tuple[str, str]:
    """File with the speech of a data directory, and its type."""
    if wants_features and data.has("feats.scp"):
        return "feats.scp", "kaldi_ark"
    return ("segments", "segments") if data.has("segments") else ("wav.scp", "sound")


def _other_rate(name: str, path: Path, rates: Counter[int], rate: int) -> str:
    found = ", ".join(f"{number} recordings of {value} Hz" for value, number in rates.most_common())
    return (
        f"--{name}_dir {path}: the model takes audio of {rate} Hz, found {found}. Resample the recordings, for example "
        f"with `sox IN.wav -r {rate} OUT.wav`, or start from a model of their sample rate"
    )


def warnings_about(train: DataSet, dev: DataSet, *, method: str) -> Iterator[str]:
    """Problems that do not stop the run."""
    yield from _overlap(train.data, dev.data)
    minutes = train.seconds / 60
    if train.seconds < VERY_LITTLE_S:
        yield (
            f"the training data has only {train.seconds:.0f} s of speech. This is too little to learn more than these "
            "sentences: collect at least 5 to 10 minutes"
        )
    elif train.seconds < LITTLE_S and method == "full":
        yield (
            f"the training data has only {minutes:.1f} minutes of speech; with so little data, --method lora or a low "
            "--lr usually forgets less than training all weights, and --replay_dir mixes in old data"
        )
    if len(dev.data.utterances) < FEW_DEV:
        yield (
            f"the dev data has only {len(dev.data.utterances)} utterances: differences of the error rate are rarely "
            "significant with so few"
        )


def _overlap(train: DataDir, dev: DataDir) -> Iterator[str]:
    sources = {(source, str(part.start_s), str(part.end_s)) for _, source, part in _parts(train)}
    shared = [name for name, source, part in _parts(dev) if (source, str(part.start_s), str(part.end_s)) in sources]
    same_ids = sorted(set(train.utterances) & set(dev.utterances))
    if shared or same_ids:
        names = shared or same_ids
        what = "recordings" if shared else "utterance ids"
        yield (
            f"{len(names)} {what} of the dev data are also in the training data, such as '{names[0]}': the dev error "
            "rate will be too low"
        )
    sentences = set(train.text.values())
    seen = sum(text in sentences for text in dev.text.values())
    if not shared and not same_ids and seen > len(dev.text) / 2:
        yield f"{seen} of {len(dev.text)} sentences of the dev data are also spoken in the training data"


def _parts(data: DataDir) -> list[tuple[str, str, Segment]]:
    return list(data.parts()) if data.has("wav.scp") else []
