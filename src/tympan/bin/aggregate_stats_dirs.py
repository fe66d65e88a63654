"""Join the statistics that several jobs of --collect_stats wrote, as ESPnet2's asr.sh does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tympan.config import option, parse_args
from tympan.decode.options import LOG_LEVELS


@dataclass(frozen=True, kw_only=True)
class Options:
    input_dir: list[Path] = option(help="directory of one job, with train and valid inside; may be repeated")
    output_dir: Path = option(help="directory to write")
    skip_sum_stats: bool = option(False, help="join only the shape files, not the sums for normalization")
    log_level: LOG_LEVELS = option("INFO", help="logging level")


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_args(Options, argv, prog="tympan aggregate_stats_dirs", description=__doc__)
    from tympan.training.aggregate import aggregate

    for mode in ("train", "valid"):
        folders = [folder / mode for folder in options.input_dir]
        aggregate(folders, options.output_dir / mode, has_sums=not options.skip_sum_stats)
    return 0


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
