"""Copy a data directory and add prefixes or suffixes to utterance and speaker ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tympan.config import argument, option, parse_args


@dataclass(frozen=True)
class Options:
    data_dir: Path = argument(help="data directory to copy")
    out_dir: Path = argument(help="directory to write the copy to")
    utt_prefix: str = option("", help="prefix for every utterance id")
    utt_suffix: str = option("", help="suffix for every utterance id")
    spk_prefix: str = option("", help="prefix for every speaker id")
    spk_suffix: str = option("", help="suffix for every speaker id")


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_args(Options, argv, prog="tympan copy_data", description=__doc__)

    from tympan.data.kaldi_dir import DataDir
    from tympan.data.rename import Renaming, affix, rename

    renaming = Renaming(
        utterance=affix(options.utt_prefix, options.utt_suffix), speaker=affix(options.spk_prefix, options.spk_suffix)
    )
    written = rename(DataDir.read(options.data_dir), renaming).write(options.out_dir)
    print(f"{options.out_dir}: {len(written.utterances)} utterances")
    return 0


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
