"""Run every benchmark and write the machine and all outputs to benchmarks/last_run.md.

    python benchmarks/run_all.py [--only features,decode] [--peer_env DIR]

`--peer_env` is an environment with ESPnet (see peer_espnet.py); without it the comparison with ESPnet is skipped.
Run it on an idle machine: a job on the other core can slow down work on two threads many times.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

import tympan

HERE = Path(__file__).resolve().parent
OUTPUT = HERE / "last_run.md"
"""RESULTS.md is written by hand from such files; NOTES.md has the history."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="names, separated by commas")
    parser.add_argument("--peer_env", type=Path, help="ESPnet's virtual environment")
    options = parser.parse_args()
    commands = all_commands(options.peer_env)
    chosen = options.only.split(",") if options.only else list(commands)
    unknown = [name for name in chosen if name not in commands]
    if unknown:
        parser.error(f"no benchmark '{unknown[0]}'; there are {', '.join(commands)}")
    sections = [machine()]
    failures = 0
    for name in chosen:
        print(f"== {name}", flush=True)
        done = subprocess.run([sys.executable, *commands[name]], stdout=subprocess.PIPE, text=True, check=False)
        print(done.stdout, flush=True)
        failures += done.returncode != 0
        given = [word for word in commands[name][1:] if not Path(word).is_absolute()]
        shown = " ".join(["python", f"benchmarks/{Path(commands[name][0]).name}", *given])
        note = "" if done.returncode == 0 else f"\nIt failed with exit code {done.returncode}.\n"
        sections.append(f"## {name}\n`{shown}`\n\n{done.stdout.strip()}\n{note}")
    OUTPUT.write_text("\n".join(sections), encoding="utf-8")
    print(f"written to {OUTPUT}")
    return 1 if failures else 0


def all_commands(peer_env: Path | None) -> dict[str, list[str]]:
    names = ("startup", "features", "index", "train_step", "decode", "scaling")
    commands = {name: [str(HERE / f"{name}.py")] for name in names}
    commands["soak"] = [str(HERE / "soak.py"), "--minutes", "2"]
    commands["ngram"] = [str(HERE / "ngram.py"), "estimate"]
    env = peer_env or Path("no-espnet-environment")
    commands["peer_espnet"] = [str(HERE / "peer_espnet.py"), "--env", str(env), "--work", tempfile.mkdtemp()]
    return commands


def machine() -> str:
    processor = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        models = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        processor = models[0] if models else processor
    load = os.getloadavg()[0]
    return (
        "# Benchmarks\n"
        "Written by `make bench`. Compare ratios of one run on an idle machine, not seconds.\n\n"
        f"{datetime.date.today()}, tympan {tympan.__version__}, Python {platform.python_version()}, "
        f"torch {torch.__version__}, {len(os.sched_getaffinity(0))} cores of {processor}, "
        f"load before the run {load:.1f}.\n"
    )


if __name__ == "__main__":
    sys.exit(main())
