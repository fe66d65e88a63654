"""Compute mean and variance statistics of features, as Kaldi's compute-cmvn-stats does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tympan.config import argument, option, parse_args
from tympan.errors import UserError


@dataclass(frozen=True)
class Options:
    feats: Path = argument(help="feats.scp, or a directory that has one")
    out: Path = argument(help="output file: a Kaldi matrix, or with --scope speaker|utterance an archive with its .scp")
    scope: Literal["global", "speaker", "utterance"] = option(
        "global", help="compute statistics over all features, per speaker, or per utterance"
    )
    utt2spk: Path | None = option(
        None, help="utt2spk file, for --scope speaker (default: utt2spk next to the features)"
    )
    text: bool = option(False, help="write the matrix as text")
    nj: int = option(1, help="number of worker processes", least=1)


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_args(Options, argv, prog="tympan compute_cmvn", description=__doc__)

    from tympan.data.kaldi_dir import read_table
    from tympan.features.cmvn import write_stats
    from tympan.features.normalize import gather_stats, read_feats, write_stats_ark

    feats = read_feats(options.feats)
    groups = None
    if options.scope == "utterance":
        groups = {key: key for key in feats}
    elif options.scope == "speaker":
        folder = options.feats if options.feats.is_dir() else options.feats.parent
        groups = read_table(options.utt2spk or folder / "utt2spk")
        missing = [key for key in feats if key not in groups]
        if missing:
            raise UserError(f"{len(missing)} utterances have no speaker in utt2spk, such as '{missing[0]}'")
    stats = gather_stats(feats, groups, nj=options.nj)
    if options.scope == "global":
        write_stats(options.out, stats["global"], text=options.text)
    else:
        write_stats_ark(options.out, stats)
    frames = int(sum(matrix[0, -1] for matrix in stats.values()))
    print(f"{options.out}: {options.scope} statistics of {len(feats)} utterances, {frames} frames")
    return 0


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
