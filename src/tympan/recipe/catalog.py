"""`tympan recipe list`, and `tympan recipe new DIR --like CORPUS`: the recipes that come with Tympan."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tympan.config import argument, option, parse_args
from tympan.config.mistakes import did_you_mean
from tympan.errors import UserError
from tympan.recipe.corpus import CORPORA, Corpus, find_registered
from tympan.recipe.shipped import EGS
from tympan.runtime.atomic import atomic_write
from tympan.runtime.child import PYTHON

RUN_SH = """#!/usr/bin/env bash
# The recipe of {corpus}. `./run.sh --help` lists the options; `./run.sh --check` checks the setup.
cd "$(dirname "$0")" || exit 1
exec "$(command -v tympan || echo {tympan})" recipe {corpus} "$@"
"""


@dataclass(frozen=True)
class LikeOptions:
    """The options of `tympan recipe new DIR --like CORPUS`."""

    name: Path = argument(help="recipe directory to create")
    like: str = option(help="corpus whose recipe to copy; `tympan recipe list` shows them")


def list_recipes() -> int:
    """Print every corpus with its size and whether stage -1 can download it."""
    rows = []
    for name in CORPORA:
        corpus = find_registered(name)
        if isinstance(corpus, Corpus):
            train = corpus.hours.get(corpus.train)
            rows.append((name, "" if train is None else f"{train:g} h", corpus.url or "no download"))
        else:
            rows.append((name, "", "your own data: tympan recipe new DIR --train_dir TRAIN --dev_dir DEV"))
    width = max(len(name) for name, _, _ in rows)
    print(f"{'corpus':<{width}}  {'training':>8}  source")
    for name, hours, source in rows:
        print(f"{name:<{width}}  {hours:>8}  {source}")
    print(
        "\nCheck one in an empty directory: tympan recipe CORPUS --check\n"
        "Get its configuration files to edit: tympan recipe new DIR --like CORPUS"
    )
    return 0


def copy_recipe(argv: Sequence[str]) -> int:
    """Create a recipe directory with the run.sh and conf/ of a corpus."""
    description = "`tympan recipe new DIR --like CORPUS`: copy a recipe that comes with Tympan."
    options = parse_args(LikeOptions, argv, prog="tympan recipe new", description=description)
    shipped = [name for name in CORPORA if (EGS / name / "asr1" / "conf").is_dir()]
    if options.like not in shipped:
        raise UserError(
            f"--like: there is no recipe '{options.like}'.{did_you_mean(options.like, shipped)} "
            f"Those with configuration files: {', '.join(shipped)}."
        )
    if (options.name / "run.sh").exists() or (options.name / "conf").exists():
        raise UserError(f"{options.name} is already a recipe. Choose another name.")
    shutil.copytree(EGS / options.like / "asr1" / "conf", options.name / "conf", copy_function=shutil.copyfile)
    with atomic_write(options.name / "run.sh") as stream:
        stream.write(RUN_SH.format(corpus=options.like, tympan=Path(PYTHON).with_name("tympan")))
    (options.name / "run.sh").chmod(0o755)
    print(
        f"{options.name}/run.sh is ready; its configuration files are in conf/. Start with: {options.name}/run.sh "
        "--check"
    )
    return 0
