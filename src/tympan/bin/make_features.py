"""Compute filterbank, pitch or MFCC features of a data directory, as Kaldi does."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tympan.config import argument, option, parse_args
from tympan.errors import UserError


@dataclass(frozen=True)
class Options:
    data_dir: Path = argument(help="Kaldi-style data directory with wav.scp (and segments)")
    out_dir: Path = argument(help="output directory for feats.scp, utt2num_frames and archive/")
    feats_type: Literal["fbank_pitch", "fbank", "mfcc"] = option("fbank_pitch", help="feature type")
    fbank_config: Path | None = option(None, help="Kaldi's conf/fbank.conf (default: 80 bins at 16 kHz)")
    mfcc_config: Path | None = option(None, help="Kaldi's conf/mfcc.conf (default: Kaldi's default options)")
    pitch_config: Path | None = option(
        None, help="Kaldi's conf/pitch.conf (default: sample rate and frames of the filterbank)"
    )
    pitch_postprocess_config: Path | None = option(None, help="Kaldi options for process-kaldi-pitch-feats")
    dither: float | None = option(
        None,
        help="amount of dither, overrides --dither in the conf file (Kaldi's default: 1.0; 0: no dither)",
        least=0,
        most=1e6,
    )
    seed: int = option(
        0,
        help="random seed of dither and pitch noise; results depend only on the seed and the utterance id",
        least=0,
        most=2**32 - 1,
    )
    nj: int = option(1, help="number of worker processes", least=1)
    channel: int | None = option(
        None, help="channel to use of multi-channel recordings, counted from 0; null: reject such recordings", least=0
    )
    allow_pipes: bool = option(False, help="run the commands of wav.scp lines that end with '|'")
    compression_method: int | None = option(
        None, help="Kaldi's --compression-method, 1 to 7 (default: not compressed)", least=1, most=7
    )
    utterances_per_archive: int = option(500, help="maximum number of utterances per archive", least=1)
    skip_broken: bool = option(False, help="skip unreadable recordings instead of failing")
    overwrite: bool = option(False, help="remove the features of an earlier run before computing new ones")
    executor: Literal["local", "dask"] = option(
        "local", help="where to run the jobs: processes of this machine, or a Dask cluster"
    )
    dask_address: str | None = option(None, help="address of the Dask scheduler, tcp://HOST:PORT")


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_args(Options, argv, prog="tympan make_features", description=__doc__)

    from tympan.data.kaldi_dir import DataDir, write_table
    from tympan.features.archive import make_archives
    from tympan.features.extractor import FeatureOptions
    from tympan.features.shards import remove_archives

    features = FeatureOptions.from_conf(
        options.feats_type,
        fbank_config=options.fbank_config,
        mfcc_config=options.mfcc_config,
        pitch_config=options.pitch_config,
        pitch_postprocess_config=options.pitch_postprocess_config,
        dither=options.dither,
        seed=options.seed,
    )
    _warn_of_unused(options)
    data = DataDir.read(options.data_dir)
    if options.overwrite:
        remove_archives(options.out_dir)
    summary = make_archives(
        data,
        options.out_dir,
        features,
        nj=options.nj,
        channel=options.channel,
        allow_pipes=options.allow_pipes,
        compression_method=options.compression_method,
        utterances_per_archive=options.utterances_per_archive,
        executor=options.executor,
        dask_address=options.dask_address,
    )
    print(
        f"{options.out_dir}/feats.scp: {summary.made + summary.kept} utterances ({summary.kept} already computed), "
        f"{summary.frames} frames of {features.dim} dimensions"
    )
    skipped = {**summary.too_short, **summary.unreadable}
    (options.out_dir / "skipped").unlink(missing_ok=True)
    if skipped:
        write_table(options.out_dir / "skipped", dict(sorted(skipped.items())))
        print(f"{len(skipped)} utterances were skipped, listed in {options.out_dir / 'skipped'}: ", end="")
        print(f"{len(summary.too_short)} shorter than one frame, {len(summary.unreadable)} unreadable")
    if not summary.made + summary.kept:
        first, reason = next(iter(skipped.items()))
        raise UserError(f"{options.data_dir}: no utterance has features. The first failure, '{first}': {reason}")
    if summary.unreadable and not options.skip_broken:
        raise UserError(
            f"{len(summary.unreadable)} recordings can't be read. The first error: "
            f"{next(iter(summary.unreadable.values()))}\n"
            f"`tympan fix_data {options.data_dir}` drops them; --skip_broken true continues without them."
        )
    return 0


def _warn_of_unused(options: Options) -> None:
    used = {"fbank": ["fbank"], "mfcc": ["mfcc"], "fbank_pitch": ["fbank", "pitch", "pitch_postprocess"]}
    for name in ("fbank", "mfcc", "pitch", "pitch_postprocess"):
        if getattr(options, f"{name}_config") is not None and name not in used[options.feats_type]:
            print(f"warning: --{name}_config is not used by --feats_type {options.feats_type}", file=sys.stderr)


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
