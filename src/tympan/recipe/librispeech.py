"""LibriSpeech: 960 hours, its 100-hour training set, and the 5-hour `mini_librispeech`, from OpenSLR."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tympan.data.kaldi_dir import DataDir
from tympan.errors import UserError, check_faults
from tympan.files import read_text
from tympan.recipe.corpus import Archive, Corpus

ROOT = "LibriSpeech"


def prepare(parts: dict[str, tuple[str, ...]], data: Path) -> dict[str, DataDir]:
    """The data directories of `parts`: the name of each set, with the directories below LibriSpeech/ that it joins."""
    return {name: _read_set(data, parts[name]) for name in present(parts, data)}


def present(parts: dict[str, tuple[str, ...]], data: Path) -> list[str]:
    """Names of the sets whose directories are all unpacked."""
    return [name for name, folders in parts.items() if all((data / ROOT / folder).is_dir() for folder in folders)]


def speaker_of(utterance: str) -> str:
    """`1272-128104` of `1272-128104-0000`: reader and chapter, as in Kaldi's recipe: chapters sound different."""
    return utterance.rpartition("-")[0]


def _read_set(data: Path, folders: tuple[str, ...]) -> DataDir:
    tables: dict[str, dict[str, str]] = {"wav.scp": {}, "text": {}}
    faults: list[str] = []
    for folder in folders:
        transcripts = sorted((data / ROOT / folder).glob("*/*/*.trans.txt"))
        if not transcripts:
            raise UserError(
                f"{data / ROOT / folder} has no READER/CHAPTER/*.trans.txt: unpack its archive again (--stage -1 "
                "--force)."
            )
        for transcript in transcripts:
            _read_chapter(transcript, tables, faults)
    check_faults(faults)
    return DataDir(data, tables)


def _read_chapter(transcript: Path, tables: dict[str, dict[str, str]], faults: list[str]) -> None:
    """Lines `1272-128104-0000 MISTER QUILTER ...`, beside `1272-128104-0000.flac`."""
    for number, line in enumerate(read_text(transcript).splitlines(), 1):
        utterance, _, text = line.strip().partition(" ")
        audio = transcript.parent / f"{utterance}.flac"
        if not text:
            faults.append(f"{transcript}:{number}: expected 'UTTERANCE WORDS', found '{line.strip()}'")
        elif not audio.is_file():
            faults.append(f"{transcript}:{number}: there is no recording {audio.name} in its directory")
        else:
            tables["wav.scp"][utterance] = str(audio.resolve())
            tables["text"][utterance] = text


def _corpus(name: str, *, url: str, parts: dict[str, tuple[str, ...]], dev: str, hours: dict[str, float]) -> Corpus:
    folders = [folder for joined in parts.values() for folder in joined]
    tests = tuple(part for part in parts if part not in ("train", dev))
    return Corpus(
        name=name,
        dev=dev,
        tests=tests,
        url=url,
        archives=tuple(
            Archive(name=folder, file=f"{folder}.tar.gz", makes=f"{ROOT}/{folder}", size_bytes=SIZES[folder])
            for folder in folders
        ),
        prepare=partial(prepare, parts),
        present=partial(present, parts),
        sources=lambda data: [data / ROOT / folder for folder in folders if (data / ROOT / folder).is_dir()],
        speaker=speaker_of,
        defaults={"feats_type": "raw", "token_type": "bpe", "nbpe": 500 if name == "mini_librispeech" else 5000},
        hours=hours,
        vocab_sizes={"bpe": 500 if name == "mini_librispeech" else 5000},
        utterance_s=12.3,
        longest_s=35.0,
        tokens_per_second=3.6,
    )


SIZES = {
    "train-clean-100": 6_387_309_499,
    "train-clean-360": 23_049_477_885,
    "train-other-500": 30_593_501_606,
    "dev-clean": 337_926_286,
    "dev-other": 314_305_928,
    "test-clean": 346_663_984,
    "test-other": 328_757_843,
    "train-clean-5": 332_954_390,
    "dev-clean-2": 126_046_265,
}
"""Bytes of the archives, for the estimate."""

_HELD_OUT = {
    "dev_clean": ("dev-clean",),
    "dev_other": ("dev-other",),
    "test_clean": ("test-clean",),
    "test_other": ("test-other",),
}
_HELD_OUT_HOURS = {"dev_clean": 5.4, "dev_other": 5.3, "test_clean": 5.4, "test_other": 5.1}
_URL = "www.openslr.org/resources/12"

LIBRISPEECH = _corpus(
    "librispeech",
    url=_URL,
    parts={"train": ("train-clean-100", "train-clean-360", "train-other-500"), **_HELD_OUT},
    dev="dev_clean",
    hours={"train": 960.9, **_HELD_OUT_HOURS},
)
LIBRISPEECH_100 = _corpus(
    "librispeech_100",
    url=_URL,
    parts={"train": ("train-clean-100",), **_HELD_OUT},
    dev="dev_clean",
    hours={"train": 100.6, **_HELD_OUT_HOURS},
)
MINI_LIBRISPEECH = _corpus(
    "mini_librispeech",
    url="www.openslr.org/resources/31",
    parts={"train": ("train-clean-5",), "dev": ("dev-clean-2",)},
    dev="dev",
    hours={"train": 5.4, "dev": 2.0},
)
