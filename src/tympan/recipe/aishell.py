"""AISHELL-1: its two archives, and data directories in the recipe's shape from what they hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tympan.data.kaldi_dir import DataDir
from tympan.errors import UserError
from tympan.recipe.download import fetch, join_url
from tympan.recipe.extract import extract, extract_nested, scratch_of

NAME = "aishell"
DATA_URL = "www.openslr.org/resources/33"
ARCHIVES = ("data_aishell", "resource_aishell")
SETS = ("train", "dev", "test")
TRANSCRIPT = Path("data_aishell", "transcript", "aishell_transcript_v0.8.txt")
WAVS = Path("data_aishell", "wav")

# The archive as its makers published it, for estimates: a sample or miniature of the same layout is smaller.
PUBLISHED_BYTES = {"data_aishell": 15_582_913_665, "resource_aishell": 1_246_920}
PUBLISHED_HOURS = {"train": 150.9, "dev": 18.1, "test": 10.0}


@dataclass(frozen=True)
class Prepared:
    """A data directory that was written: how many recordings it has, and how many had no transcript."""

    name: str
    utterances: int
    speakers: int
    without_text: int


def is_extracted(data: Path, part: str) -> bool:
    """True if `part` is unpacked to the last speaker, by us (`.complete`) or by hand."""
    root = data / part
    if part != "data_aishell":
        return root.is_dir() and any(root.iterdir())
    if scratch_of(data / f"{part}.tgz", data).exists() or not (data / TRANSCRIPT).is_file():
        return False
    if any(root.glob("wav/*.tar.gz")) or any(root.glob("wav/.extracting-*")):
        return False
    return (root / ".complete").is_file() or next(_wavs(data, SETS), None) is not None


def download(data: Path, url: str, part: str) -> Path:
    """Stage -1, first half: the archive in `data`."""
    return fetch(join_url(url, f"{part}.tgz"), data / f"{part}.tgz")


def unpack(data: Path, part: str, *, nj: int) -> None:
    """Stage -1, second half: the archive and, for the recordings, the archive of each speaker in it."""
    root, archive = data / part, data / f"{part}.tgz"
    is_begun = any(root.glob("wav/*.tar.gz")) and not scratch_of(archive, data).exists()
    if not is_begun:  # else an earlier run got as far as the speakers
        extract(archive, data)
    if not root.is_dir():
        raise UserError(f"{archive} holds no directory '{part}': it is not the AISHELL archive of that name.")
    if part == "data_aishell":
        extract_nested(root / "wav", nj=nj)
    (root / ".complete").touch()


def prepare(data: Path, out: Path) -> list[Prepared]:
    """Stage 0: `out/train`, `out/dev`, `out/test` for those sets that are present, transcripts without spaces."""
    transcripts = read_transcripts(data / TRANSCRIPT)
    names = present(data)
    if "train" not in names or "dev" not in names:
        raise UserError(
            f"{data / WAVS} has {_listed(names)}, and training needs 'train' and 'dev'. "
            "The corpus is not whole: unpack it again (--stage -1 --force), or name the right directory (--data)."
        )
    return [_prepare_set(data, name, transcripts, out / name) for name in names]


def unheard(data: Path) -> list[str]:
    """Sentences of the transcript without a recording: AISHELL has none, half of AISHELL has."""
    heard = {path.stem for path in _wavs(data, SETS)}
    return [utterance for utterance in read_transcripts(data / TRANSCRIPT) if utterance not in heard]


def present(data: Path) -> list[str]:
    """Those of train, dev and test that have recordings."""
    return [name for name in SETS if (data / WAVS / name).is_dir()]


def read_transcripts(path: Path) -> dict[str, str]:
    """Sentence by utterance id, without spaces: characters are the units, AISHELL's spaces mark its segmentation."""
    if not path.is_file():
        raise UserError(f"{path} is missing: {path.parents[2]} does not hold the unpacked AISHELL corpus (--data).")
    texts: dict[str, str] = {}
    faults = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is not UTF-8; fetch the archive again.") from error
    for number, line in enumerate(lines, 1):
        utterance, _, words = line.strip().partition(" ")
        text = "".join(words.split())
        if not utterance:
            continue
        if not text:
            faults.append(f"{path}:{number}: utterance '{utterance}' has no text")
        elif texts.setdefault(utterance, text) != text:
            faults.append(f"{path}:{number}: utterance '{utterance}' has two transcripts")
    if faults:
        raise UserError("\n".join(faults[:20]))
    return texts


def _prepare_set(data: Path, name: str, transcripts: dict[str, str], out: Path) -> Prepared:
    wavs = dict(sorted((path.stem, path) for path in _wavs(data, (name,))))
    spoken = {utterance: path for utterance, path in wavs.items() if utterance in transcripts}
    if not spoken:
        raise UserError(f"{data / WAVS / name}: none of its {len(wavs)} recordings is in {data / TRANSCRIPT}.")
    directory = DataDir(
        out,
        {
            "wav.scp": {utterance: str(path.resolve()) for utterance, path in spoken.items()},
            "text": {utterance: transcripts[utterance] for utterance in spoken},
            "utt2spk": {utterance: path.parent.name for utterance, path in spoken.items()},
        },
    )
    directory.write(out)
    speakers = len(set(directory.utt2spk.values()))
    return Prepared(name, len(spoken), speakers, len(wavs) - len(spoken))


def _wavs(data: Path, names: tuple[str, ...]) -> Iterator[Path]:
    for name in names:
        yield from (data / WAVS / name).glob("*/*.wav")


def _listed(names: list[str]) -> str:
    return " and ".join(f"'{name}'" for name in names) if names else "no sets"
