"""Common Voice: one language of a release, whose archive is downloaded from its website after an agreement."""

from __future__ import annotations

from pathlib import Path

from tympan.data.kaldi_dir import DataDir
from tympan.data.manifest import read_manifest
from tympan.errors import UserError
from tympan.recipe.corpus import Corpus

SETS = ("train", "dev", "test")


def find_language(data: Path) -> Path:
    """The directory with train.tsv: `data` itself, or the only one of that kind up to two levels below."""
    found = [path.parent for pattern in ("", "*/", "*/*/") for path in sorted(data.glob(f"{pattern}train.tsv"))]
    if not found:
        raise UserError(
            f"{data} has no train.tsv. Download a language of Common Voice from commonvoice.mozilla.org, unpack it, "
            "and pass its directory (cv-corpus-.../LANGUAGE) as --data."
        )
    if len(found) > 1:
        names = ", ".join(str(path) for path in found[:5])
        raise UserError(f"{data} contains several languages: {names}. Pass one of these directories as --data.")
    return found[0]


def present(data: Path) -> list[str]:
    """Names of the sets that have a list."""
    folder = find_language(data)
    return [name for name in SETS if (folder / f"{name}.tsv").is_file()]


def prepare(data: Path) -> dict[str, DataDir]:
    """The sets of a language. The recordings are in `clips/`; speakers are the anonymous ids of the contributors."""
    folder = find_language(data)
    return {name: read_manifest(folder / f"{name}.tsv", audio_dir=folder / "clips") for name in present(data)}


def sources(data: Path) -> list[Path]:
    """The lists, and the directory of the recordings."""
    folder = find_language(data)
    return [*(folder / f"{name}.tsv" for name in present(data)), folder / "clips"]


COMMON_VOICE = Corpus(
    name="commonvoice",
    prepare=prepare,
    present=present,
    sources=sources,
    defaults={"feats_type": "raw", "token_type": "bpe", "nbpe": 1000},
    vocab_sizes={"bpe": 1000},
    utterance_s=5.5,
    longest_s=15.0,
    tokens_per_second=3.6,
)
