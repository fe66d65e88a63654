"""AISHELL-1: its two archives, and the data directories made from them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from tympan.data.kaldi_dir import DataDir
from tympan.errors import UserError
from tympan.files import read_text
from tympan.recipe.corpus import Archive, Corpus
from tympan.recipe.extract import extract, extract_nested, scratch_of

SETS = ("train", "dev", "test")
TRANSCRIPT = Path("data_aishell", "transcript", "aishell_transcript_v0.8.txt")
WAVS = Path("data_aishell", "wav")


def is_extracted(part: str, data: Path) -> bool:
    """True if `part` is completely unpacked, by this recipe (`.complete`) or by hand."""
    root = data / part
    if part != "data_aishell":
        return root.is_dir() and any(root.iterdir())
    if scratch_of(data / f"{part}.tgz", data).exists() or not (data / TRANSCRIPT).is_file():
        return False
    if any(root.glob("wav/*.tar.gz")) or any(root.glob("wav/.extracting-*")):
        return False
    return (root / ".complete").is_file() or next(_wavs(data, SETS), None) is not None


def unpack(part: str, data: Path, nj: int) -> None:
    """Unpack an archive and, for the recordings, the archive of each speaker in it."""
    root, archive = data / part, data / f"{part}.tgz"
    is_begun = any(root.glob("wav/*.tar.gz")) and not scratch_of(archive, data).exists()
    if not is_begun:  # else an earlier run already reached the speakers' archives
        extract(archive, data)
    if not root.is_dir():
        raise UserError(f"{archive} contains no directory '{part}': it is not the AISHELL archive of that name.")
    if part == "data_aishell":
        extract_nested(root / "wav", nj=nj)
    (root / ".complete").touch()


def prepare(data: Path) -> dict[str, DataDir]:
    """Those of train, dev and test that are present, with the recordings that have a transcript."""
    transcripts = read_transcripts(data / TRANSCRIPT)
    sets = {name: _read_set(data, name, transcripts) for name in present(data)}
    _warn_of_missing(data, transcripts)
    return sets


def speaker_of(utterance: str) -> str:
    """`S0002` of `BAC009S0002W0122`."""
    return utterance[6:11]


def without_spaces(text: str) -> str:
    """Remove the spaces, which mark AISHELL's word segmentation: the recipe's units are characters."""
    return "".join(text.split())


def present(data: Path) -> list[str]:
    """Those of train, dev and test that have recordings."""
    return [name for name in SETS if (data / WAVS / name).is_dir()]


def read_transcripts(path: Path) -> dict[str, str]:
    """The transcript as sentence by utterance id."""
    if not path.is_file():
        raise UserError(f"{path} is missing: {path.parents[2]} does not contain the unpacked AISHELL corpus (--data).")
    texts: dict[str, str] = {}
    faults = []
    lines = read_text(path).splitlines()
    for number, line in enumerate(lines, 1):
        utterance, _, text = line.strip().partition(" ")
        if not utterance:
            continue
        if not without_spaces(text):
            faults.append(f"{path}:{number}: utterance '{utterance}' has no text")
        elif without_spaces(texts.setdefault(utterance, text)) != without_spaces(text):
            faults.append(f"{path}:{number}: utterance '{utterance}' has two transcripts")
    if faults:
        raise UserError("\n".join(faults[:20]))
    return texts


def _read_set(data: Path, name: str, transcripts: Mapping[str, str]) -> DataDir:
    wavs = {path.stem: path for path in _wavs(data, (name,))}
    spoken = {utterance: path for utterance, path in wavs.items() if utterance in transcripts}
    if not spoken:
        raise UserError(
            f"{data / WAVS / name}: none of its {len(wavs)} recordings has a transcript in {data / TRANSCRIPT}."
        )
    if len(spoken) < len(wavs):
        print(f"    {name}: {len(wavs) - len(spoken)} recordings without a transcript were skipped")
    tables = {
        "wav.scp": {utterance: str(path.resolve()) for utterance, path in spoken.items()},
        "text": {utterance: transcripts[utterance] for utterance in spoken},
        "utt2spk": {utterance: path.parent.name for utterance, path in spoken.items()},
    }
    return DataDir(data, tables)


def _warn_of_missing(data: Path, transcripts: Mapping[str, str]) -> None:
    """Warn about sentences without a recording: a complete AISHELL has none."""
    recorded = {path.stem for path in _wavs(data, SETS)}
    missing = [utterance for utterance in transcripts if utterance not in recorded]
    if not missing:
        return
    speakers = sorted({speaker_of(utterance) for utterance in missing})
    shown = ", ".join(speakers[:5]) + (f" and {len(speakers) - 5} others" if len(speakers) > 5 else "")
    print(
        f"tympan: warning: {len(missing):,} sentences of the transcript have no recording in {data} (of {shown}). "
        "If you did not remove them on purpose, the corpus is incomplete: unpack it again with --stage -1 --force.",
        file=sys.stderr,
        flush=True,
    )


def _wavs(data: Path, names: tuple[str, ...]) -> Iterator[Path]:
    for name in names:
        yield from (data / WAVS / name).glob("*/*.wav")


def _archive(part: str, size_bytes: int) -> Archive:
    return Archive(
        name=part, file=f"{part}.tgz", makes=f"{part}/.complete", size_bytes=size_bytes,
        is_unpacked=partial(is_extracted, part), unpack=partial(unpack, part),
    )  # fmt: skip


AISHELL = Corpus(
    name="aishell",
    url="www.openslr.org/resources/33",
    archives=(_archive("data_aishell", 15_582_913_665), _archive("resource_aishell", 1_246_920)),
    prepare=prepare,
    present=present,
    sources=lambda data: [data / TRANSCRIPT, data / WAVS],
    speaker=speaker_of,
    clean_text=without_spaces,
    hours={"train": 150.9, "dev": 18.1, "test": 10.0},
    vocab_sizes={"char": 4233},
    utterance_s=4.5,
    longest_s=15.0,
    tokens_per_second=3.2,  # 14.4 characters in 4.5 s
)
