"""Combine data directories into one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tympan.config import argument, parse_args


@dataclass(frozen=True)
class Options:
    out_dir: Path = argument(help="output directory for the combined data")
    data_dirs: list[Path] = argument(help="data directories to combine")


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_args(Options, argv, prog="tympan combine_data", description=__doc__)

    from tympan.data.combine import combine
    from tympan.data.kaldi_dir import DataDir

    combined = combine([DataDir.read(path) for path in options.data_dirs])
    written = combined.data.write(options.out_dir)
    print(f"{options.out_dir}: {len(written.utterances)} utterances from {len(options.data_dirs)} directories")
    if combined.left_out:
        print(f"skipped files that some directories lack: {', '.join(combined.left_out)}")
    return 0


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
