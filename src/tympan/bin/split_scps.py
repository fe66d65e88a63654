"""Split lists of utterances into parts for --multiple_iterator, as ESPnet2's asr.sh does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tympan.config import option, parse_args
from tympan.decode.options import LOG_LEVELS
from tympan.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Options:
    scps: list[Path] = option(help="files of the same utterances in the same order, such as wav.scp and text")
    names: list[str] | None = option(None, help="name of each output; null: the names of the files")
    num_splits: int = option(help="number of parts", least=2)
    output_dir: Path = option(help="directory to write: NAME/split.0, NAME/split.1, ... and NAME/num_splits")
    log_level: LOG_LEVELS = option("INFO", help="logging level")


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_args(Options, argv, prog="tympan split_scps", description=__doc__)
    from tympan.data.splits import split_lists

    names = options.names or [path.name for path in options.scps]
    if len(set(names)) < len(names) or len(names) != len(options.scps):
        raise UserError(f"--names must give one name per file, each once; found {', '.join(names)}")
    split_lists(dict(zip(names, options.scps, strict=True)), options.output_dir, number=options.num_splits)
    return 0


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
