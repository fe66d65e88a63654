"""Run a whole recipe in minutes: synthesize a small AISHELL, train, decode, score, write a report."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tympan.config import option, parse_args


@dataclass(frozen=True)
class Options:
    dir: Path = option(Path("demo"), help="working directory of the demo")
    nj: int = option(0, help="number of processes; 0: one per CPU core", least=0)
    ngpu: int = option(0, help="number of accelerators to train on; 0: train on the CPU", least=0)
    seed: int = option(0, help="random seed of the synthesized corpus", least=0, most=2**32 - 1)


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_args(Options, argv, prog="tympan demo", description=__doc__)
    from tympan.recipe.console import in_words
    from tympan.recipe.demo import prepare_demo, recipe_options
    from tympan.recipe.run import run_recipe

    began = time.monotonic()
    options.dir.mkdir(parents=True, exist_ok=True)
    os.chdir(options.dir)
    recipe = recipe_options(nj=options.nj, ngpu=options.ngpu)
    prepare_demo(seed=options.seed, nj=recipe.jobs)
    code = run_recipe(recipe, shown_from=options.dir)
    print(f"the demo took {in_words(time.monotonic() - began)}; all files are in {Path.cwd()}")
    return code


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
