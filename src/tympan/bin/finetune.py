"""Fine-tune a trained model on your own data, and report the error rates before and after."""

from __future__ import annotations

from collections.abc import Sequence

from tympan.config import parse_args
from tympan.tuning.options import FinetuneOptions


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_args(FinetuneOptions, argv, prog="tympan finetune", description=__doc__)

    from tympan.tuning.run import run_finetuning

    print(run_finetuning(options).summary)
    return 0


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
