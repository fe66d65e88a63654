"""Train a language model (ESPnet2's lm_train)."""

from __future__ import annotations

from collections.abc import Sequence

from tympan.tasks import train_command
from tympan.tasks.lm import LmTask


def main(argv: Sequence[str] | None = None) -> int:
    return train_command(LmTask(), argv, prog="tympan lm_train")


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
