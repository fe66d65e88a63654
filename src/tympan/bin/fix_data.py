"""Repair a data directory: sort it, drop broken entries, keep a copy of the files, report what was dropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tympan.config import argument, option, parse_args
from tympan.errors import UserError


@dataclass(frozen=True)
class Options:
    data_dir: Path = argument(help="data directory to repair; the original files are kept in its .backup folder")
    nj: int = option(1, help="number of worker processes that check audio", least=1)
    audio: bool = option(
        True, help="also check the audio, and drop recordings that are missing, unreadable or truncated"
    )
    allow_pipes: bool = option(False, help="run the commands of wav.scp lines that end with '|'")


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_args(Options, argv, prog="tympan fix_data", description=__doc__)

    from tympan.data.fix import fix
    from tympan.data.validate import validate

    report = validate(options.data_dir, nj=options.nj, audio=options.audio, allow_pipes=options.allow_pipes)
    pipes = [fault for fault in report.errors if fault.kind == "pipe"]
    if pipes:
        raise UserError(str(pipes[0]))
    result = fix(report)
    if result.backup is None:
        print(f"{report.describe()}: nothing to fix")
    else:
        for key, reason in result.dropped.items():
            print(f"dropped '{key}': {reason}")
        fixed = ", ".join(f"{count} {kind}" for kind, count in sorted(result.mended.items()))
        print(
            f"{options.data_dir}: kept {len(result.data.utterances)} utterances, dropped {len(result.dropped)}"
            + (f"; fixed lines: {fixed}" if fixed else "")
        )
        print(f"the original files and the list of dropped entries are in {result.backup}")
    left = [fault for fault in report.errors if fault.kind in ("sample-rate", "duration")]
    for fault in left:
        print(fault)
    if left:
        print("these faults need a decision and were not fixed automatically; see docs/data.md")
    return 1 if left else 0


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
