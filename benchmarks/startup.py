"""Seconds until a command has finished, with warm file caches: the median of several starts.

    python benchmarks/startup.py [--repeats 5]

ESPnet2 on the same kind of machine: `asr_train --help` 9.4 to 11.3 s, `--print_config` 9.8 to 12.2 s.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

COMMANDS = (
    ["tympan"],
    ["tympan", "asr_train", "--help"],
    ["tympan", "asr_train", "--print_config"],
    ["tympan", "asr_train", "--encoder", "conformer", "--optim", "adam", "--print_config"],
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    print("| command | seconds |\n|---|---|")
    for command in COMMANDS:
        print(f"| `{' '.join(command)}` | {statistics.median(seconds(command) for _ in range(repeats)):.2f} |")


def seconds(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", *command], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
