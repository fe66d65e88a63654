"""Speed-perturb a data directory: every utterance at every speed, with ids such as sp0.9-ID."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tympan.config import argument, option, parse_args


@dataclass(frozen=True)
class Options:
    data_dir: Path = argument(help="data directory with wav.scp")
    out_dir: Path = argument(help="output directory for the perturbed data and its audio/")
    speeds: list[float] = option(
        [0.9, 1.0, 1.1], help="speed factors; above 1 is faster and higher in pitch", least=0.1, most=10
    )
    audio_format: Literal["flac", "wav"] = option("flac", help="format of the written audio (16 bit)")
    prefix_unperturbed: bool = option(
        True, help="also rename utterances at speed 1.0, to sp1.0-ID (as the AISHELL recipe does)"
    )
    allow_pipes: bool = option(False, help="run the commands of wav.scp lines that end with '|'")
    nj: int = option(1, help="number of worker processes", least=1)
    executor: Literal["local", "dask"] = option(
        "local", help="where to run the jobs: processes of this machine, or a Dask cluster"
    )
    dask_address: str | None = option(None, help="address of the Dask scheduler, tcp://HOST:PORT")


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_args(Options, argv, prog="tympan perturb_data", description=__doc__)

    from tympan.data.kaldi_dir import DataDir
    from tympan.data.perturb import PerturbOptions, perturb_speed

    written = perturb_speed(
        DataDir.read(options.data_dir),
        options.out_dir,
        PerturbOptions(
            speeds=tuple(options.speeds),
            audio_format=options.audio_format,
            prefix_unperturbed=options.prefix_unperturbed,
            allow_pipes=options.allow_pipes,
        ),
        nj=options.nj,
        executor=options.executor,
        dask_address=options.dask_address,
    )
    print(f"{options.out_dir}: {len(written.utterances)} utterances at speeds {', '.join(map(str, options.speeds))}")
    return 0


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
