"""The description of a corpus; the steps of stages -1 and 0 follow from it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from tympan.config.mistakes import did_you_mean
from tympan.config.registry import is_import
from tympan.data.kaldi_dir import DataDir
from tympan.errors import UserError
from tympan.recipe.console import in_bytes
from tympan.recipe.download import fetch, join_url
from tympan.recipe.extract import extract
from tympan.recipe.options import RecipeOptions
from tympan.recipe.stage import Step

DATA = Path("data")
LABELS = ("text", "utt2spk")
"""Files of a data directory that do not change its audio."""
NOT_UNPACKED = (
    "does not contain the unpacked corpus: give the right directory (--data), or let stage -1 download and unpack it "
    "(--stage -1)."
)


@dataclass(frozen=True, kw_only=True)
class Archive:
    """A file to download and unpack.

    `file` is its name at the corpus's URL. `makes` is a path, relative to `--data`, that exists once it is unpacked.
    `unpack` takes that directory and a number of processes; without it the archive is extracted there. `is_unpacked`
    is for corpora that can be present in another form than `makes`. `size_bytes` is for the estimate.
    """

    name: str
    file: str
    makes: str
    size_bytes: int = 0
    is_unpacked: Callable[[Path], bool] | None = None
    unpack: Callable[[Path, int], None] | None = None

    def is_found(self, data: Path) -> bool:
        """Whether the archive is already unpacked in `data`."""
        return (data / self.makes).exists() if self.is_unpacked is None else self.is_unpacked(data)

    def unpack_in(self, data: Path, *, nj: int) -> None:
        """Unpack the archive, a file in `data`, into that directory."""
        if self.unpack is not None:
            self.unpack(data, nj)
            return
        extract(data / self.file, data)
        if not self.is_found(data):
            raise UserError(f"{data / self.file} does not contain {self.makes}: it is not the archive of {self.name}.")


def _same(text: str) -> str:
    return text


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """A corpus. Functions take the directory of the unpacked corpus (`--data`).

    Only `name` and `prepare` are required: `prepare` returns the content of each set's data directory. If it gives no
    utt2spk, `speaker` of the utterance id makes it; `clean_text` is applied to every transcript. Names are those of
    the sets under `data/`.
    """

    name: str
    prepare: Callable[[Path], Mapping[str, DataDir]]
    train: str = "train"
    dev: str = "dev"
    tests: tuple[str, ...] = ("test",)
    present: Callable[[Path], Sequence[str]] | None = None
    """Names of the sets that `prepare` will return; None: all of them."""
    segmented: frozenset[str] = frozenset()
    """Names of the sets whose data directory has a file `segments`."""
    directories: Mapping[str, Path] = field(default_factory=dict)
    """Data directories that `prepare` copies, by the name of the set: `--check` validates and measures them."""
    sources: Callable[[Path], Sequence[Path]] = lambda data: [data]
    """Files and directories that `prepare` reads: stage 0 runs again when they change."""
    speaker: Callable[[str], str] = _same
    clean_text: Callable[[str], str] = _same

    url: str = ""
    archives: tuple[Archive, ...] = ()
    defaults: Mapping[str, object] = field(default_factory=dict)
    """Defaults of `tympan recipe` options that differ for this corpus."""
    check: Callable[[], None] = lambda: None
    """Raises a UserError, before any stage runs, for input that stage 0 would miss."""

    hours: Mapping[str, float] = field(default_factory=dict)
    """Published hours by name of the set. This and the following fields are for the estimate of `--check`."""
    vocab_sizes: Mapping[str, int] = field(default_factory=dict)
    """Number of tokens by token type."""
    utterance_s: float = 4.5
    longest_s: float = 15.0
    tokens_per_second: float = 3.2

    @property
    def archive_bytes(self) -> int:
        return sum(archive.size_bytes for archive in self.archives)

    def sets(self, data: Path) -> list[str]:
        """Names of the sets that can be prepared from `data`."""
        return [self.train, self.dev, *self.tests] if self.present is None else list(self.present(data))

    def decoded(self) -> list[str]:
        """Names of the sets to decode: dev, and the prepared test sets."""
        return [name for name in (self.dev, *self.tests) if (DATA / name / "wav.scp").is_file()]


CORPORA: dict[str, str | Corpus] = {
    "aishell": "tympan.recipe.aishell:AISHELL",
    "aishell2": "tympan.recipe.mandarin:AISHELL2",
    "an4": "tympan.recipe.an4:AN4",
    "commonvoice": "tympan.recipe.common_voice:COMMON_VOICE",
    "librispeech": "tympan.recipe.librispeech:LIBRISPEECH",
    "librispeech_100": "tympan.recipe.librispeech:LIBRISPEECH_100",
    "mini_librispeech": "tympan.recipe.librispeech:MINI_LIBRISPEECH",
    "thchs30": "tympan.recipe.mandarin:THCHS30",
    "custom": "tympan.recipe.custom:own_corpus",
}
"""Corpora by name: a Corpus, or the import path of one (or of a function from options to a Corpus)."""


def find_corpus(options: RecipeOptions) -> Corpus:
    """The corpus that the options select."""
    found = find_registered(options.corpus)
    return found if isinstance(found, Corpus) else found(options)


def defaults_of(name: str) -> Mapping[str, object]:
    """Options whose defaults the corpus changes."""
    found = find_registered(name)
    return found.defaults if isinstance(found, Corpus) else {}


def find_registered(name: str) -> Corpus | Callable[[RecipeOptions], Corpus]:
    """The corpus of a name or import path, or the function that makes it from the options."""
    entry = CORPORA.get(name, name)
    if isinstance(entry, Corpus):
        return entry
    if not is_import(entry):
        known = ", ".join(CORPORA)
        hint = did_you_mean(name, CORPORA)
        raise UserError(
            f"there is no corpus '{name}'.{hint} Known: {known} (`tympan recipe list` describes them); or "
            "package.module:NAME for your own corpus."
        )
    module, _, attribute = entry.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        raise UserError(f"corpus '{name}': there is no module '{error.name}' on the Python path.") from None
    if not isinstance(found, Corpus) and not callable(found):
        raise UserError(f"corpus '{name}': the module '{module}' has no tympan.recipe.corpus.Corpus '{attribute}'.")
    return found


def download_steps(corpus: Corpus, options: RecipeOptions) -> list[Step]:
    """Stage -1: download and unpack every archive that is not unpacked yet."""
    data, url = Path(options.data), options.data_url or corpus.url
    steps = []
    for archive in corpus.archives:
        path = data / archive.file
        found = partial(_found, archive, data)
        download = partial(fetch, join_url(url, archive.file), path)
        unpack = partial(archive.unpack_in, data, nj=options.jobs)
        steps += [
            Step(f"download {archive.name}", download, makes=[path], found=found),
            Step(f"unpack {archive.name}", unpack, needs=[path], makes=[data / archive.makes], found=found),
        ]
    return steps


def data_steps(corpus: Corpus, options: RecipeOptions) -> list[Step]:
    """Stage 0: write the data directory of every set that is present."""
    data = Path(options.data)
    makes = []
    for name in corpus.sets(data):
        files = ["wav.scp", *LABELS] + (["segments"] if name in corpus.segmented else [])
        makes += [DATA / name / file for file in files]
    remedy = f"{data} {NOT_UNPACKED}"
    run = partial(write_sets, corpus, data, DATA)
    return [
        Step("prepare data", run, corpus.sources(data), makes, remedy=remedy if corpus.archives else ""),
    ]  # fmt: skip


def write_sets(corpus: Corpus, data: Path, out: Path) -> None:
    """Prepare the sets, write their data directories to `out`, and print what is in them."""
    present = corpus.sets(data)
    if corpus.train not in present or corpus.dev not in present:
        if not present:
            raise UserError(f"{data} {NOT_UNPACKED}")
        listed = " and ".join(f"'{name}'" for name in present)
        raise UserError(
            f"{data} has {listed}, but training needs '{corpus.train}' and '{corpus.dev}'. The corpus is incomplete: "
            "unpack it again (--stage -1 --force), or give the right directory (--data)."
        )
    for name, prepared in corpus.prepare(data).items():
        written = _completed(corpus, prepared).write(out / name)
        speakers = len(set(written.utt2spk.values()))
        print(f"    {name}: {len(written.utterances)} utterances of {speakers} speakers")


def describe_archives(corpus: Corpus, options: RecipeOptions, *, start: int) -> list[str]:
    """Lines for `--check`: where the corpus comes from, and what is present."""
    data = Path(options.data)
    if not corpus.archives:
        return [str(path) for path in dict.fromkeys(source.parent for source in corpus.sources(data))]
    found = sorted(data.glob("*.tgz")) + sorted(data.glob("*.tar.gz"))
    lines = [f"{path}: {in_bytes(path.stat().st_size)}" for path in found]
    lines += [f"{archive.name}: unpacked in {data}" for archive in corpus.archives if archive.is_found(data)]
    if lines:
        return lines
    hint = "" if start <= -1 else " (add --stage -1)"
    return [f"none in {data}: stage -1 downloads them from {options.data_url or corpus.url}{hint}"]


def data_files(directory: Path) -> list[Path]:
    """The files of a data directory that affect what is made from it."""
    names = ("wav.scp", *LABELS, "segments")
    return [directory / name for name in names if name != "segments" or (directory / name).exists()]


def sound_files(directory: Path) -> list[Path]:
    """Those of them that locate its audio."""
    return [file for file in data_files(directory) if file.name not in LABELS]


def _completed(corpus: Corpus, prepared: DataDir) -> DataDir:
    tables = dict(prepared.tables)
    if prepared.text:
        tables["text"] = {key: corpus.clean_text(text) for key, text in prepared.text.items()}
    if not prepared.utt2spk:
        tables["utt2spk"] = {utterance: corpus.speaker(utterance) for utterance in prepared.utterances}
    return replace(prepared, tables=tables)


def _found(archive: Archive, data: Path) -> str | None:
    return f"{archive.name} is unpacked in {data} already" if archive.is_found(data) else None
