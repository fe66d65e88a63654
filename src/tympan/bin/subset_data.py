"""Select utterances of a data directory: a given number of them, or those in a list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tympan.config import argument, option, parse_args
from tympan.errors import UserError


@dataclass(frozen=True)
class Options:
    data_dir: Path = argument(help="data directory")
    out_dir: Path = argument(help="output directory for the subset")
    number: int | None = option(
        None, help="number of utterances to select (per speaker with --how per_speaker)", least=1
    )
    how: Literal["even", "first", "last", "shortest", "random", "per_speaker"] = option(
        "even", help="how to select --number utterances; even: evenly spaced over the directory"
    )
    utt_list: Path | None = option(None, help="file whose first column lists the utterances to select")
    spk_list: Path | None = option(None, help="file whose first column lists the speakers to select")
    seed: int = option(0, help="random seed for --how random", least=0, most=2**32 - 1)


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_args(Options, argv, prog="tympan subset_data", description=__doc__)
    if options.number is None and options.utt_list is None and options.spk_list is None:
        raise UserError("give one of --number, --utt_list and --spk_list")

    from tympan.data.kaldi_dir import DataDir, split_line
    from tympan.data.subset import choose
    from tympan.files import read_text

    def listed(path: Path) -> set[str]:
        return {split_line(line)[0] for line in read_text(path).splitlines()} - {""}

    data = DataDir.read(options.data_dir)
    if options.utt_list is not None:
        wanted = listed(options.utt_list)
        unknown = wanted - set(data.utterances)
        if unknown:
            print(
                f"{len(unknown)} utterances of {options.utt_list} are not in {options.data_dir}, such as "
                f"'{min(unknown)}'"
            )
        data = data.keep(wanted)
    if options.spk_list is not None:
        speakers = listed(options.spk_list)
        data = data.keep([key for key, speaker in data.utt2spk.items() if speaker in speakers])
    if options.number is not None:
        data = data.keep(choose(data, options.number, options.how, seed=options.seed))
    if not data.utterances:
        raise UserError(f"{options.data_dir}: no utterance was selected")
    written = data.write(options.out_dir)
    print(f"{options.out_dir}: {len(written.utterances)} utterances")
    return 0


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
