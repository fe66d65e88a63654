"""CMU AN4, from the original sphere archive or from data directories that already exist."""

from __future__ import annotations

import re
from pathlib import Path

from tympan.data.kaldi_dir import DataDir
from tympan.errors import UserError
from tympan.files import read_text
from tympan.recipe.corpus import Archive, Corpus
from tympan.recipe.extract import extract

ARCHIVE = "an4_sphere.tar.gz"
DEV_UTTERANCES = 100
PREPARED = ("train_nodev", "train_dev", "test")
_SPOKEN_IN = {"train": "an4_clstk", "test": "an4test_clstk"}
_LINE = re.compile(r"^(?:<s>\s+)?(?P<words>.*?)\s*(?:</s>\s*)?\((?P<source>[^()]+)\)\s*$")


def is_extracted(data: Path) -> bool:
    """True for the unpacked archive, and for data directories made from it."""
    return (_root(data) / "etc" / "an4_train.transcription").is_file() or _is_prepared(data)


def unpack(data: Path, nj: int) -> None:
    extract(data / ARCHIVE, data)
    if not is_extracted(data):
        raise UserError(f"{data / ARCHIVE} contains no an4/etc/an4_train.transcription: it is not the AN4 archive.")


def prepare(data: Path) -> dict[str, DataDir]:
    """`train_nodev`, `train_dev` (the first 100 training utterances by id) and, if present, `test`."""
    if _is_prepared(data):
        return {name: DataDir.read(data / name) for name in present(data)}
    if not is_extracted(data):
        raise UserError(
            f"{data} contains neither the unpacked AN4 archive (an4/etc/an4_train.transcription) nor its data "
            "directories (train_nodev, train_dev). Run stage -1 to download it, or point --data to it."
        )
    train = _read(_root(data), "train")
    ids = sorted(train.wav)
    sets = {"train_nodev": train.keep(ids[DEV_UTTERANCES:]), "train_dev": train.keep(ids[:DEV_UTTERANCES])}
    if "test" in present(data):
        sets["test"] = _read(_root(data), "test")
    return sets


def present(data: Path) -> list[str]:
    """Names of the sets that `prepare` can make from `data`."""
    has_test = (data / "test" / "wav.scp").is_file() or (_root(data) / "etc" / "an4_test.transcription").is_file()
    return list(PREPARED if has_test else PREPARED[:2])


def sources(data: Path) -> list[Path]:
    """The files that `prepare` reads."""
    if _is_prepared(data):
        return [data / name / "wav.scp" for name in present(data)] + [data / name / "text" for name in present(data)]
    return [_root(data) / "etc", _root(data) / "wav"]


def speaker_of(utterance: str) -> str:
    """`fash` of `fash-an251-fash-b`."""
    return utterance.partition("-")[0]


def _root(data: Path) -> Path:
    return data / "an4" if (data / "an4").is_dir() else data


def _is_prepared(data: Path) -> bool:
    return all((data / name / "wav.scp").is_file() for name in PREPARED[:2])


def _read(root: Path, name: str) -> DataDir:
    path = root / "etc" / f"an4_{name}.transcription"
    tables: dict[str, dict[str, str]] = {"wav.scp": {}, "text": {}}
    faults = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if not line.strip():
            continue
        found = _LINE.match(line)
        if not found or found["source"].count("-") != 2:
            faults.append(f"{path}:{number}: expected 'WORDS (an251-fash-b)', found '{line.strip()}'")
            continue
        speaker = found["source"].split("-")[1]
        utterance = f"{speaker}-{found['source']}"
        audio = _audio(root / "wav" / _SPOKEN_IN[name] / speaker, found["source"])
        if audio is None:
            faults.append(f"{path}:{number}: no {found['source']}.sph, .flac or .wav in {root / 'wav'}")
            continue
        tables["wav.scp"][utterance] = str(audio.resolve())
        tables["text"][utterance] = found["words"]
    if faults:
        more = f"\n... and {len(faults) - 20} more" if len(faults) > 20 else ""
        raise UserError("\n".join(faults[:20]) + more)
    return DataDir(root, tables)


def _audio(directory: Path, source: str) -> Path | None:
    candidates = (directory / f"{source}.{kind}" for kind in ("sph", "flac", "wav"))
    return next((path for path in candidates if path.is_file()), None)


AN4 = Corpus(
    name="an4",
    train="train_nodev",
    dev="train_dev",
    tests=("test",),
    url="http://www.speech.cs.cmu.edu/databases/an4",
    archives=(
        Archive(
            name="an4",
            file=ARCHIVE,
            makes="an4",
            size_bytes=64_327_561,
            is_unpacked=is_extracted,
            unpack=unpack,
        ),
    ),
    prepare=prepare,
    present=present,
    sources=sources,
    speaker=speaker_of,
    # With so little speech, phones of a lexicon and features made in the model are far better (RESULTS.md).
    defaults={"feats_type": "raw", "token_type": "phn", "lm_config": ""},
    hours={"train_nodev": 0.71, "train_dev": 0.08, "test": 0.1},
    vocab_sizes={"char": 30},
)
