"""Train a language model (ESPnet2's lm_train)."""

from __future__ import annotations

from collections.abc import Sequence

from tympan.config.lm import LmTrainConfig
from tympan.config.training import parse_training


def main(argv: Sequence[str] | None = None) -> int:
    config = parse_training(LmTrainConfig, argv, prog="tympan lm_train", description=__doc__)
    from tympan.train.session import run_training

    return run_training(config, kind="lm", argv=argv)


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
