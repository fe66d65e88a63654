"""Run a recipe in the current directory: check it, run its stages, and print the results."""

from __future__ import annotations

import json
import shutil
import sys
import time
from functools import partial
from pathlib import Path

from tympan.data.kaldi_dir import read_table
from tympan.errors import UserError
from tympan.recipe.console import in_words, say
from tympan.recipe.corpus import DATA, data_steps, download_steps
from tympan.recipe.decode_steps import decode_steps, error_rates, packed_dir
from tympan.recipe.engine import Engine, status_table
from tympan.recipe.options import RecipeOptions
from tympan.recipe.recipe import Recipe
from tympan.recipe.stage import Stage, Step, find_stage
from tympan.recipe.tokens import dictionary_step
from tympan.recipe.training_steps import asr_steps, lm_steps
from tympan.runtime.atomic import atomic_write

HOME = Path(".tympan")
LAST_RUN = HOME / "last_run.json"


def run_recipe(options: RecipeOptions, *, shown_from: Path = Path()) -> int:
    """Run the stages that the options select. Finished steps are skipped.

    `shown_from` is the path of this directory from the user's shell, or an absolute path, so that printed paths can be
    copied.
    """
    from tympan.recipe.check import check_configuration, check_recipe

    recipe = Recipe.of(options)
    if recipe.options != options:
        print(
            f"{Path.cwd()} has no directory conf; using the configuration files in "
            f"{Path(recipe.options.train_config).parent}",
            flush=True,
        )
    stages = build_stages(recipe)
    start = find_stage(stages, options.stage, "--stage")
    stop = find_stage(stages, options.stop_stage, "--stop_stage")
    if start > stop:
        raise UserError(f"--stage {options.stage} comes after --stop_stage {options.stop_stage}: nothing to do.")
    if options.check:
        return check_recipe(recipe, start, stop)
    check_configuration(recipe, start, stop)
    with atomic_write(LAST_RUN) as stream:
        json.dump(dict(vars(options)), stream, indent=1)
    began = time.monotonic()
    Engine(HOME, say=say).run(stages, start, stop, force=options.force)
    say(f"finished in {in_words(time.monotonic() - began)}")
    if stop >= 5:
        _print_results(recipe, shown_from)
    return 0


def last_options() -> RecipeOptions:
    """The options of the last run in this directory."""
    try:
        return RecipeOptions(**json.loads(LAST_RUN.read_text(encoding="utf-8")))
    except Exception as error:  # nothing there, or damaged
        raise UserError(
            f"no recipe was run in {Path.cwd()} yet. Change to a recipe directory, or give the corpus: tympan "
            "recipe status aishell"
        ) from error


def show_status(options: RecipeOptions) -> int:
    """The table of stages, for these options."""
    print(status_table(Engine(HOME), build_stages(Recipe.of(options))))
    return 0


def build_stages(recipe: Recipe) -> list[Stage]:
    """Stages -1 to 5, with ESPnet1's numbers."""
    corpus, options = recipe.corpus, recipe.options
    features = partial(recipe.features.feature_steps, corpus)
    return [
        Stage(-1, "download", "download and unpack", partial(download_steps, corpus, options)),
        Stage(0, "data", "data preparation", partial(data_steps, corpus, options)),
        Stage(1, "features", "speed perturbation, features, normalization", features),
        Stage(2, "dictionary", "dictionary and lengths", partial(_dictionary_steps, recipe)),
        Stage(3, "lm", "language models", partial(lm_steps, recipe)),
        Stage(4, "train", "training", partial(asr_steps, recipe)),
        Stage(5, "decode", "decoding and scoring", partial(decode_steps, recipe)),
    ]


def _dictionary_steps(recipe: Recipe) -> list[Step]:
    train = recipe.train_set
    return [
        dictionary_step(recipe.tokens, train, recipe.corpus.dev),
        *recipe.features.length_steps([train, *recipe.corpus.decoded()]),
    ]


def _print_results(recipe: Recipe, shown_from: Path) -> None:
    for name, rates in error_rates(recipe).items():
        decoded = shown_from / recipe.decode_dir(name)
        listed = ", ".join(f"{kind} {rate:.1f} %" for kind, rate in rates.items())
        say(f"{name}: {listed}\n  table   {decoded / 'score_cer' / 'result.txt'}\n  report  {decoded / 'report.html'}")
    folder = shown_from / packed_dir(recipe)
    recording = next(iter(read_table(DATA / recipe.corpus.decoded()[-1] / "wav.scp").values()))
    program = Path(sys.executable).with_name("tympan") if shutil.which("tympan") is None else "tympan"
    say(f"model: {folder}\ntranscribe with it: {program} transcribe {folder} {recording}")
