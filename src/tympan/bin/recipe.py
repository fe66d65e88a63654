"""Run a recipe, stage by stage, from the corpus archive to the error rate (also: recipe list, new, status)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments == ["list"]:
        from tympan.recipe.catalog import list_recipes

        return list_recipes()
    if arguments[:1] == ["new"] and any(word.partition("=")[0] == "--like" for word in arguments):
        from tympan.recipe.catalog import copy_recipe

        return copy_recipe(arguments[1:])
    if arguments[:1] == ["new"]:
        from tympan.recipe.custom import main as new

        return new(arguments[1:])
    from tympan.recipe.recipe import parse_options
    from tympan.recipe.run import last_options, run_recipe, show_status

    if arguments[:1] != ["status"]:
        # run.sh changes the directory, so relative paths could not be copied into the user's shell.
        return run_recipe(parse_options(arguments, description=__doc__), shown_from=Path.cwd())
    return show_status(parse_options(arguments[1:], description=__doc__) if arguments[1:] else last_options())


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
