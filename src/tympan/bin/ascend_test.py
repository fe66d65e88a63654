"""Run AISHELL like the test scripts of the Ascend port of ESPnet, with the same result lines and logs."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tympan.config import option, parse_args
from tympan.errors import UserError

if TYPE_CHECKING:
    from tympan.recipe.options import RecipeOptions

SAME_IN_A_RECIPE = (
    "device", "data_url", "train_config", "lm_config", "decode_config", "n_average", "speeds", "nj", "asr_args",
    "lm_args", "inference_args",
)  # fmt: skip
"""Options that a recipe has under the same name."""


@dataclass(frozen=True)
class Options:
    data_path: str = option("", help="directory with the AISHELL archives or the unpacked corpus (required)")
    stage: str = option("-1", help="first stage, by number or name")
    cards: int = option(1, help="number of devices to train on, one process per device", least=0)
    performance: bool = option(False, help="run only a few epochs of stage 4, to measure throughput")
    device: Literal["cpu", "cuda", "npu", "mps"] | None = option(
        None, help="device type; cpu: train on the CPU, with --cards processes; null: detect"
    )
    data_url: str = option("", help="URL or directory to download the archives from (default: the official one)")
    train_config: str = option("conf/train.yaml", help="training configuration of the recognizer")
    lm_config: str = option("conf/lm.yaml", help="training configuration of the neural LM")
    decode_config: str = option("conf/decode.yaml", help="decoding configuration")
    n_average: int = option(10, help="number of epochs to average", least=0)
    speeds: str = option("0.9 1.0 1.1", help="speed perturbation factors, one copy of the training data per factor")
    nj: int = option(0, help="number of processes for feature extraction and decoding; 0: one per CPU core", least=0)
    asr_args: str = option("", help="additional options for asr_train")
    lm_args: str = option("", help="additional options for lm_train")
    inference_args: str = option("", help="additional options for asr_inference")
    output: Path = option(Path("test/output/0"), help="output directory for the logs")


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_args(Options, argv, prog="tympan ascend_test", description=__doc__)
    if not options.data_path:
        print(
            "tympan: error: --data_path=DIRECTORY is required: the directory that holds the AISHELL archives, or "
            "to download them to",
            file=sys.stderr,
        )
        return 1
    from tympan.recipe.ascend import TestRun, closing_lines, read_training, write_logs
    from tympan.recipe.corpus import find_corpus
    from tympan.recipe.decode_steps import scored
    from tympan.recipe.run import run_recipe
    from tympan.recipe.training_steps import batch_size_of

    recipe = _recipe(options)
    began = time.monotonic()
    try:
        run_recipe(recipe)
    except UserError as error:
        # The scripts choose the CPU by another option than the recipe.
        raise UserError(str(error).replace("--ngpu 0", "--device cpu")) from None
    seconds = time.monotonic() - began
    corpus = find_corpus(recipe)
    speed, losses, device = read_training(recipe.asr_dir(recipe.train_set(corpus.train)))
    run = TestRun(
        cards=options.cards,
        batch_size=batch_size_of(recipe, corpus),
        device=device,
        iterations_a_second=speed,
        losses=losses,
        error_rates={} if options.performance else scored(recipe, corpus),
        seconds=seconds,
    )
    for path in write_logs(run, options.output):
        print(path)
    print("\n".join(closing_lines(run)))
    return 0


def _recipe(options: Options) -> RecipeOptions:
    """The same run as options of a recipe."""
    from tympan.recipe.options import RecipeOptions

    recipe = RecipeOptions(
        corpus="aishell",
        data=options.data_path,
        stage=options.stage,
        ngpu=0 if options.device == "cpu" else options.cards,
        nproc=options.cards if options.device == "cpu" else 1,
        **{name: getattr(options, name) for name in SAME_IN_A_RECIPE},
    )
    if not options.performance:
        return recipe
    epochs = 2 if options.cards == 1 else 5
    return replace(
        recipe, stage="4", stop_stage="4", tag="performance", n_average=0, force=True,
        asr_args=f"{options.asr_args} --max_epoch {epochs}",
    )  # fmt: skip


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
