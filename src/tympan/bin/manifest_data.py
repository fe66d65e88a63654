"""Make a data directory from a manifest: CSV, TSV or JSON lines with path, text and speaker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tympan.config import argument, option, parse_args


@dataclass(frozen=True)
class Options:
    manifest: Path = argument(
        help="manifest.csv, .tsv or .jsonl with the columns path, text and, if known, speaker and id"
    )
    data_dir: Path = argument(help="data directory to write")
    audio_dir: Path | None = option(None, help="directory of relative paths (default: the manifest's directory)")


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_args(Options, argv, prog="tympan manifest_data", description=__doc__)

    from tympan.data.manifest import read_manifest

    written = read_manifest(options.manifest, audio_dir=options.audio_dir).write(options.data_dir)
    speakers = len(set(written.utt2spk.values()))
    print(f"{options.data_dir}: {len(written.utterances)} utterances of {speakers} speakers")
    return 0


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
