"""Mandarin corpora besides AISHELL-1: THCHS-30 (from OpenSLR) and AISHELL-2 (on request from its publisher)."""

from __future__ import annotations

from pathlib import Path

from tympan.data.kaldi_dir import DataDir
from tympan.errors import UserError, check_faults
from tympan.files import read_text
from tympan.recipe.aishell import without_spaces
from tympan.recipe.corpus import Archive, Corpus

THCHS = Path("data_thchs30")
THCHS_SETS = ("train", "dev", "test")
AISHELL2_SETS = {"train": Path("iOS", "data"), "dev": Path("iOS", "dev"), "test": Path("iOS", "test")}
"""Directories of the sets, each with `wav.scp` and `trans.txt`."""


def prepare_thchs30(data: Path) -> dict[str, DataDir]:
    """Those of train, dev and test that are unpacked."""
    return {name: _thchs30_set(data, name) for name in present_thchs30(data)}


def present_thchs30(data: Path) -> list[str]:
    """Names of the sets that are unpacked."""
    return [name for name in THCHS_SETS if (data / THCHS / name).is_dir()]


def _thchs30_set(data: Path, name: str) -> DataDir:
    """Recordings `A11_0.wav`. The first line of `data/A11_0.wav.trn` is the sentence, in words."""
    tables: dict[str, dict[str, str]] = {"wav.scp": {}, "text": {}, "utt2spk": {}}
    faults: list[str] = []
    for audio in sorted((data / THCHS / name).glob("*.wav")):
        transcript = data / THCHS / "data" / f"{audio.name}.trn"
        lines = read_text(transcript).splitlines() if transcript.is_file() else []
        if not lines or not lines[0].strip():
            faults.append(f"{transcript}: there is no sentence for {audio.name}")
            continue
        tables["wav.scp"][audio.stem] = str(audio.resolve())
        tables["text"][audio.stem] = lines[0]
        tables["utt2spk"][audio.stem] = audio.stem.partition("_")[0]
    return _checked(data / THCHS / name, tables, faults)


def prepare_aishell2(data: Path) -> dict[str, DataDir]:
    """Those of train, dev and test that are present."""
    return {name: _aishell2_set(data / AISHELL2_SETS[name]) for name in present_aishell2(data)}


def present_aishell2(data: Path) -> list[str]:
    """Names of the sets that have a `trans.txt`."""
    found = [name for name, folder in AISHELL2_SETS.items() if (data / folder / "trans.txt").is_file()]
    if not found:
        files = ", ".join(f"{folder}/trans.txt" for folder in AISHELL2_SETS.values())
        raise UserError(
            f"{data} has none of {files}. AISHELL-2 is available on request (aishelltech.com/aishell_2): unpack it, "
            "and pass the directory that contains iOS as --data."
        )
    return found


def _aishell2_set(folder: Path) -> DataDir:
    """`wav.scp` has paths relative to the set; `trans.txt` has `IC0001W0001<tab>sentence`."""
    wavs, texts = (_read_table(folder / name) for name in ("wav.scp", "trans.txt"))
    tables: dict[str, dict[str, str]] = {"wav.scp": {}, "text": {}, "utt2spk": {}}
    faults: list[str] = []
    for utterance, (number, text) in texts.items():
        if utterance not in wavs:
            faults.append(f"{folder / 'trans.txt'}:{number}: utterance '{utterance}' is not in wav.scp")
            continue
        audio = folder / wavs[utterance][1]
        if not audio.is_file():
            faults.append(f"{folder / 'wav.scp'}:{wavs[utterance][0]}: there is no recording {audio}")
            continue
        tables["wav.scp"][utterance] = str(audio.resolve())
        tables["text"][utterance] = text.upper()
        tables["utt2spk"][utterance] = aishell2_speaker(utterance)
    return _checked(folder, tables, faults)


def aishell2_speaker(utterance: str) -> str:
    """`C0001` of `IC0001W0001`."""
    return utterance[1:6]


def _read_table(path: Path) -> dict[str, tuple[int, str]]:
    """Line number and value by utterance id."""
    if not path.is_file():
        raise UserError(f"{path} is missing: --data must name the directory that contains iOS/data of AISHELL-2.")
    rows = ((number, line.split(maxsplit=1)) for number, line in enumerate(read_text(path).splitlines(), 1))
    return {parts[0]: (number, parts[1].strip()) for number, parts in rows if len(parts) == 2}


def _checked(folder: Path, tables: dict[str, dict[str, str]], faults: list[str]) -> DataDir:
    check_faults(faults)
    if not tables["text"]:
        raise UserError(f"{folder} has no recordings: unpack the archive again (--stage -1 --force).")
    return DataDir(folder, tables)


THCHS30 = Corpus(
    name="thchs30",
    url="www.openslr.org/resources/18",
    archives=(Archive(name="data_thchs30", file="data_thchs30.tgz", makes=str(THCHS), size_bytes=6_453_425_169),),
    prepare=prepare_thchs30,
    present=present_thchs30,
    sources=lambda data: [data / THCHS / name for name in (*present_thchs30(data), "data")],
    speaker=lambda utterance: utterance.partition("_")[0],
    clean_text=without_spaces,
    defaults={"feats_type": "raw", "token_type": "char"},
    hours={"train": 25.0, "dev": 2.2, "test": 6.2},
    vocab_sizes={"char": 2880},
    utterance_s=9.0,
    longest_s=16.0,
    tokens_per_second=3.3,
)
AISHELL2 = Corpus(
    name="aishell2",
    prepare=prepare_aishell2,
    present=present_aishell2,
    sources=lambda data: [data / AISHELL2_SETS[name] for name in present_aishell2(data)],
    speaker=aishell2_speaker,
    clean_text=without_spaces,
    defaults={"feats_type": "raw", "token_type": "char"},
    hours={"train": 1000.0, "dev": 2.0, "test": 4.0},
    vocab_sizes={"char": 5206},
    utterance_s=3.6,
    longest_s=15.0,
    tokens_per_second=3.2,
)
