"""A recipe in the current directory: look first, then run its stages, then say what came out."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path

from tympan.data.kaldi_dir import read_table
from tympan.errors import UserError
from tympan.recipe.amounts import in_words
from tympan.recipe.corpus import DATA, Corpus, find_corpus
from tympan.recipe.decode_steps import error_rates, packed_dir
from tympan.recipe.engine import Engine, status_table
from tympan.recipe.options import RecipeOptions
from tympan.recipe.stage import find_stage
from tympan.recipe.stages import build_stages
from tympan.runtime.atomic import atomic_write

HOME = Path(".tympan")
LAST_RUN = HOME / "last_run.json"


def run_recipe(options: RecipeOptions, *, shown_from: Path = Path()) -> int:
    """Run the stages that the options ask for; only what is not done already.

    `shown_from` is where the user's shell sees this directory: the closing lines are for copying.
    """
    from tympan.recipe.check import check_configuration, check_recipe

    corpus = find_corpus(options)
    stages = build_stages(options, corpus)
    start = find_stage(stages, options.stage, "--stage")
    stop = find_stage(stages, options.stop_stage, "--stop_stage")
    if start > stop:
        raise UserError(f"--stage {options.stage} comes after --stop_stage {options.stop_stage}: nothing to do.")
    if options.check:
        return check_recipe(options, corpus, start, stop)
    check_configuration(options, corpus, start, stop)
    with atomic_write(LAST_RUN) as stream:
        json.dump(dict(vars(options)), stream, indent=1)
    began = time.monotonic()
    Engine(HOME, say=_say).run(stages, start, stop, force=options.force)
    _say(f"finished in {in_words(time.monotonic() - began)}")
    if stop >= 5:
        _summarise(options, corpus, shown_from)
    return 0


def last_options() -> RecipeOptions:
    """The options of the last run in this directory."""
    try:
        return RecipeOptions(**json.loads(LAST_RUN.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(
            f"no recipe ran in {Path.cwd()} yet. Go to a recipe's directory, or name it: tympan recipe status aishell"
        ) from error


def show_status(options: RecipeOptions) -> int:
    """The table of stages, for these options."""
    print(status_table(Engine(HOME), build_stages(options, find_corpus(options))))
    return 0


def _summarise(options: RecipeOptions, corpus: Corpus, shown_from: Path) -> None:
    train = options.train_set(corpus.train)
    for name, rates in error_rates(options, corpus).items():
        decoded = shown_from / options.decode_dir(train, name)
        listed = ", ".join(f"{kind} {rate:.1f} %" for kind, rate in rates.items())
        _say(f"{name}: {listed}\n  table   {decoded / 'score_cer' / 'result.txt'}\n  report  {decoded / 'report.html'}")
    folder = shown_from / packed_dir(options, options.asr_dir(train))
    recording = next(iter(read_table(DATA / corpus.decoded()[-1] / "wav.scp").values()))
    program = Path(sys.executable).with_name("tympan") if shutil.which("tympan") is None else "tympan"
    _say(f"model: {folder}\ntranscribe with it: {program} transcribe {folder} {recording}")


def _say(line: str) -> None:
    print(line, flush=True)
