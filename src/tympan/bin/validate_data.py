"""Check a Kaldi-style data directory and its audio; list every fault with file and line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tympan.config import argument, option, parse_args


@dataclass(frozen=True)
class Options:
    data_dir: list[Path] = argument(help="data directories to check")
    nj: int = option(1, help="number of worker processes that check audio", least=1)
    audio: bool = option(True, help="check that every recording exists and is complete")
    allow_pipes: bool = option(False, help="run the commands of wav.scp lines that end with '|'")
    show: int = option(20, help="maximum number of faults to print per kind; 0: all", least=0)
    report: Path | None = option(None, help="write all faults to this file")
    executor: Literal["local", "dask"] = option(
        "local", help="where to run the audio checks: processes of this machine, or a Dask cluster"
    )
    dask_address: str | None = option(None, help="address of the Dask scheduler, tcp://HOST:PORT")


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_args(Options, argv, prog="tympan validate_data", description=__doc__)

    from tympan.data.validate import FIXES, validate
    from tympan.runtime.atomic import atomic_write

    reports = [
        validate(
            directory,
            nj=options.nj,
            audio=options.audio,
            allow_pipes=options.allow_pipes,
            executor=options.executor,
            dask_address=options.dask_address,
        )
        for directory in options.data_dir
    ]
    for report in reports:
        shown: dict[str, int] = {}
        for fault in report.faults:
            shown[fault.kind] = shown.get(fault.kind, 0) + 1
            if not options.show or shown[fault.kind] <= options.show:
                print(fault)
        for kind, count in report.kinds().items():
            if options.show and count > options.show:
                print(f"... and {count - options.show} more of kind '{kind}' (--show 0 or --report FILE lists them)")
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(report.kinds().items()))
        print(f"{report.describe()}: {kinds or 'no faults'}")
        if report.errors:
            print(f"`tympan fix_data {report.path}` {FIXES}")
    if options.report is not None:
        with atomic_write(options.report) as stream:
            stream.writelines(f"{fault}\n" for report in reports for fault in report.faults)
    return 1 if any(report.errors for report in reports) else 0


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
