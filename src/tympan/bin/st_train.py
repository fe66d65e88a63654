"""Train a speech translation model (ESPnet2's st_train)."""

from __future__ import annotations

from collections.abc import Sequence

from tympan.tasks import train_command
from tympan.tasks.st import StTask


def main(argv: Sequence[str] | None = None) -> int:
    return train_command(StTask(), argv, prog="tympan st_train")


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
