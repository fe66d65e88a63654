"""Make a data directory from a manifest (CSV, TSV, JSON lines) or a folder of Hugging Face's `datasets`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tympan.config import argument, option, parse_args
from tympan.errors import UserError

if TYPE_CHECKING:
    from tympan.data.kaldi_dir import DataDir


@dataclass(frozen=True)
class Options:
    manifest: Path = argument(
        help="manifest.csv, .tsv or .jsonl with the columns path, text and, if known, speaker and id; or a folder "
        "that `datasets` saved with save_to_disk, with the columns audio and text"
    )
    data_dir: Path = argument(help="data directory to write")
    audio_dir: Path | None = option(
        None,
        help="directory that a manifest's relative paths start from, or to which the recordings of a dataset are "
        "written; null: the manifest's directory, or DATA_DIR/audio",
    )
    split: str | None = option(None, help="split of a dataset, such as train")


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_args(Options, argv, prog="tympan manifest_data", description=__doc__)

    written = _read(options).write(options.data_dir)
    speakers = len(set(written.utt2spk.values()))
    print(f"{options.data_dir}: {len(written.utterances)} utterances of {speakers} speakers")
    return 0


def _read(options: Options) -> DataDir:
    from tympan.data.hf_dataset import is_dataset, read_dataset
    from tympan.data.manifest import read_manifest

    if is_dataset(options.manifest):
        audio_dir = options.audio_dir or options.data_dir / "audio"
        return read_dataset(options.manifest, audio_dir=audio_dir, split=options.split)
    if options.split is not None:
        raise UserError(f"--split {options.split}: {options.manifest} is not a dataset of Hugging Face; remove it")
    return read_manifest(options.manifest, audio_dir=options.audio_dir)


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
