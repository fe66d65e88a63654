"""What a recipe has to know of a corpus: how it comes, and the names of its sets."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tympan.data.kaldi_dir import DataDir
from tympan.errors import UserError
from tympan.recipe import aishell, an4
from tympan.recipe.options import RecipeOptions
from tympan.recipe.stage import Step

DATA = Path("data")
LABELS = ("text", "utt2spk")
"""Files of a data directory that say nothing of its sound."""


@dataclass(frozen=True)
class Corpus:
    """Names of the sets under `data/`, and the steps of stages -1 and 0. Hours and bytes are for estimates."""

    train: str
    dev: str
    tests: tuple[str, ...]
    download: Callable[[], list[Step]]
    prepare: Callable[[], list[Step]]
    hours: Mapping[str, float] = field(default_factory=dict)
    archive_bytes: int = 0
    check: Callable[[], None] = lambda: None
    """Says before any work what stage 0 would miss."""

    def decoded(self) -> list[str]:
        """Sets to decode: dev, and those tests that are there."""
        return [name for name in (self.dev, *self.tests) if (DATA / name / "wav.scp").is_file()]


def data_files(directory: Path) -> list[Path]:
    """The files of a data directory that decide what comes of it."""
    names = ("wav.scp", *LABELS, "segments")
    return [directory / name for name in names if name != "segments" or (directory / name).exists()]


def sound_files(directory: Path) -> list[Path]:
    """Those of them that say where its sound is."""
    return [file for file in data_files(directory) if file.name not in LABELS]


def sound_triple(directory: Path) -> str:
    """Its sound as commands take it: parts of recordings where there are segments."""
    if (directory / "segments").exists():
        return f"{directory / 'segments'},speech,segments"
    return f"{directory / 'wav.scp'},speech,sound"


def find_corpus(options: RecipeOptions) -> Corpus:
    """The corpus that the options name."""
    return {"aishell": _aishell, "an4": _an4, "custom": _custom}[options.corpus](options)


def _aishell(options: RecipeOptions) -> Corpus:
    data, url = Path(options.data), options.data_url or aishell.DATA_URL

    def download() -> list[Step]:
        steps = []
        for part in aishell.ARCHIVES:
            found = partial(_found, partial(aishell.is_extracted, data, part), f"{data / part} is unpacked already")
            archive = data / f"{part}.tgz"
            fetch = partial(aishell.download, data, url, part)
            unpack = partial(aishell.unpack, data, part, nj=options.jobs)
            steps += [
                Step(f"download {part}", fetch, makes=[archive], found=found),
                Step(f"unpack {part}", unpack, needs=[archive], makes=[data / part / ".complete"], found=found),
            ]
        return steps

    def prepare() -> None:
        sets = aishell.prepare(data, DATA)
        _report(
            (one.name, one.utterances, f" of {one.speakers} speakers" + _without_text(one.without_text)) for one in sets
        )
        _warn_of_unheard(aishell.unheard(data), data)

    def steps() -> list[Step]:
        makes = [file for name in aishell.present(data) for file in data_files(DATA / name)]
        needs = [data / aishell.TRANSCRIPT, data / aishell.WAVS]
        remedy = (
            f"{data} does not hold the unpacked corpus: name the directory that does (--data), or let stage -1 fetch "
            "and unpack it (--stage -1)."
        )
        return [Step("prepare data", prepare, needs=needs, makes=makes, remedy=remedy)]

    return Corpus(
        "train", "dev", ("test",), download, steps, aishell.PUBLISHED_HOURS, sum(aishell.PUBLISHED_BYTES.values())
    )  # fmt: skip


def _an4(options: RecipeOptions) -> Corpus:
    data, url = Path(options.data), options.data_url or an4.DATA_URL

    def download() -> list[Step]:
        found = partial(_found, partial(an4.is_extracted, data), f"{data} holds AN4 already")
        archive = data / an4.ARCHIVE
        return [
            Step("download an4", partial(an4.download, data, url), makes=[archive], found=found),
            Step("unpack an4", partial(an4.unpack, data), needs=[archive], makes=[data / "an4"], found=found),
        ]

    def prepare() -> None:
        _report((name, count, "") for name, count in an4.prepare(data, DATA).items())

    def steps() -> list[Step]:
        makes = [file for name in an4.present(data) for file in data_files(DATA / name)]
        return [Step("prepare data", prepare, needs=an4.sources(data), makes=makes)]

    return Corpus("train_nodev", "train_dev", ("test",), download, steps, an4.HOURS, an4.ARCHIVE_BYTES)


def _custom(options: RecipeOptions) -> Corpus:
    given = {"train": options.train_dir, "dev": options.dev_dir}
    missing = [f"--{name}_dir" for name, place in given.items() if not place]
    if missing:
        wanted = " and ".join(missing)
        raise UserError(f"corpus 'custom' needs {wanted}: a Kaldi-style data directory with wav.scp, text and utt2spk.")
    for place in options.test_dir:
        name = Path(place).name
        name = f"{name}_test" if name in ("train", "dev") else name
        if name in given:
            raise UserError(f"--test_dir {given[name]} and {place}: their results would have the same name, '{name}'.")
        given[name] = place

    def prepare() -> None:
        directories = {name: _with_text(Path(place)) for name, place in given.items()}
        _report((name, len(one.write(DATA / name).utterances), "") for name, one in directories.items())

    def steps() -> list[Step]:
        needs = [file for place in given.values() for file in data_files(Path(place))]
        makes = [DATA / name / file.name for name, place in given.items() for file in data_files(Path(place))]
        return [Step("prepare data", prepare, needs=needs, makes=makes)]

    tests = tuple(name for name in given if name not in ("train", "dev"))
    return Corpus("train", "dev", tests, list, steps, check=partial(_require_directories, options))


def _require_directories(options: RecipeOptions) -> None:
    """One's own data directories are there, with what a recipe needs of them."""
    mistakes = []
    for option, places in (("train", [options.train_dir]), ("dev", [options.dev_dir]), ("test", options.test_dir)):
        for place in places:
            lacking = [name for name in ("wav.scp", *LABELS) if not Path(place, name).is_file()]
            if not Path(place).is_dir():
                mistakes.append(f"--{option}_dir: there is no directory {place}")
            elif lacking:
                mistakes.append(
                    f"--{option}_dir: {place} has no {', '.join(lacking)}; docs/data.md tells what they hold"
                )
    if mistakes:
        raise UserError("\n".join(mistakes))


def _with_text(place: Path) -> DataDir:
    directory = DataDir.read(place)
    without = [utterance for utterance in directory.utterances if not directory.text.get(utterance)]
    if without:
        raise UserError(
            f"{place / 'text'}: {len(without)} utterances have no text, the first is '{without[0]}'. "
            f"`tympan validate_data {place}` lists every fault, `tympan fix_data {place}` leaves such utterances out."
        )
    return directory


def _without_text(count: int) -> str:
    return f", {count} recordings without transcript left out" if count else ""


def _warn_of_unheard(lost: Sequence[str], data: Path) -> None:
    if lost:
        speakers = sorted({utterance[6:11] for utterance in lost})
        shown = ", ".join(speakers[:5]) + (f" and {len(speakers) - 5} others" if len(speakers) > 5 else "")
        print(
            f"tympan: warning: {len(lost):,} sentences of the transcript have no recording in {data} (of {shown}). "
            "If they were not left out on purpose, this is half a corpus: unpack it again with --stage -1 --force.",
            file=sys.stderr,
            flush=True,
        )


def _found(is_there: Callable[[], bool], reason: str) -> str | None:
    return reason if is_there() else None


def _report(sets: Iterable[tuple[str, int, str]]) -> None:
    for name, utterances, more in sets:
        print(f"    {name}: {utterances} utterances{more}")
