"""Train a speech recognizer (ESPnet2's asr_train)."""

from __future__ import annotations

from collections.abc import Sequence

from tympan.tasks import train_command
from tympan.tasks.asr import AsrTask


def main(argv: Sequence[str] | None = None) -> int:
    return train_command(AsrTask(), argv, prog="tympan asr_train")


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
