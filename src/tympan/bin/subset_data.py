"""Select utterances of a data directory: a number of them, or those of a list."""

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
    out_dir: Path = argument(help="where the part goes")
    number: int | None = option(None, help="so many utterances (of each speaker with --how per_speaker)")
    how: Literal["even", "first", "last", "shortest", "random", "per_speaker"] = option(
        "even", help="which of them; even: spread over the whole directory"
    )
    utt_list: Path | None = option(None, help="file whose first column lists utterances to take")
    spk_list: Path | None = option(None, help="file whose first column lists speakers to take")
    seed: int = option(0, help="of --how random")


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_args(Options, argv, prog="tympan subset_data", description=__doc__)
    if options.number is None and options.utt_list is None and options.spk_list is None:
        raise UserError("one of --number, --utt_list and --spk_list is needed")

    from tympan.data.kaldi_dir import DataDir, split_line
    from tympan.data.subset import choose

    def listed(path: Path) -> set[str]:
        if not path.is_file():
            raise UserError(f"{path}: there is no such file")
        return {split_line(line)[0] for line in path.read_text(encoding="utf-8").splitlines()} - {""}

    data = DataDir.read(options.data_dir)
    if options.utt_list is not None:
        wanted = listed(options.utt_list)
        unknown = wanted - set(data.utterances)
        if unknown:
            print(f"{len(unknown)} of {options.utt_list} are not in {options.data_dir}, such as '{min(unknown)}'")
        data = data.keep(wanted)
    if options.spk_list is not None:
        speakers = listed(options.spk_list)
        data = data.keep([key for key, speaker in data.utt2spk.items() if speaker in speakers])
    if options.number is not None:
        data = data.keep(choose(data, options.number, options.how, seed=options.seed))
    if not data.utterances:
        raise UserError(f"{options.data_dir}: no utterance is left")
    written = data.write(options.out_dir)
    print(f"{options.out_dir}: {len(written.utterances)} utterances")
    return 0


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
