"""Train a speech recogniser (ESPnet2's asr_train)."""

from __future__ import annotations

from collections.abc import Sequence

from tympan.config.asr import AsrTrainConfig
from tympan.config.training import parse_training


def main(argv: Sequence[str] | None = None) -> int:
    config = parse_training(AsrTrainConfig, argv, prog="tympan asr_train", description=__doc__)
    from tympan.train.session import run_training

    return run_training(config, kind="asr", argv=argv)


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
