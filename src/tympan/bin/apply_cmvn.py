"""Normalize features with CMVN statistics and optionally add deltas; writes new archives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tympan.config import argument, option, parse_args
from tympan.errors import UserError


@dataclass(frozen=True)
class Options:
    feats: Path = argument(help="feats.scp, or a directory that has one")
    out_dir: Path = argument(help="output directory for feats.scp, utt2num_frames and archive/")
    cmvn: Path | None = option(
        None,
        help="global statistics, or a .scp with statistics per speaker or utterance (default: each utterance's own)",
    )
    utt2spk: Path | None = option(
        None, help="utt2spk file, for statistics per speaker (default: utt2spk next to the features)"
    )
    norm_means: bool = option(True, help="subtract the mean")
    norm_vars: bool = option(True, help="divide by the standard deviation")
    do_delta: bool = option(False, help="add delta and delta-delta features after normalization")
    compression_method: int | None = option(
        None, help="Kaldi's --compression-method, 1 to 7 (default: not compressed)", least=1, most=7
    )
    nj: int = option(1, help="number of worker processes", least=1)


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_args(Options, argv, prog="tympan apply_cmvn", description=__doc__)

    from tympan.data.kaldi_dir import read_table
    from tympan.features.normalize import normalize_feats, read_feats

    folder = options.feats if options.feats.is_dir() else options.feats.parent
    if options.out_dir.resolve() == folder.resolve():
        raise UserError(
            f"{options.out_dir}: the normalized features would overwrite their source; choose another OUT_DIR"
        )
    speakers = options.utt2spk or folder / "utt2spk"
    if options.utt2spk is not None and not speakers.exists():
        raise UserError(f"{speakers}: no such file")
    feats = read_feats(options.feats)
    written = normalize_feats(
        feats,
        options.out_dir,
        cmvn=options.cmvn,
        utt2spk=read_table(speakers) if speakers.exists() else None,
        norm_means=options.norm_means,
        norm_vars=options.norm_vars,
        do_delta=options.do_delta,
        compression_method=options.compression_method,
        nj=options.nj,
    )
    print(
        f"{options.out_dir}/feats.scp: {len(written)} utterances, {sum(count for _, count in written.values())} frames"
    )
    return 0


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
