"""Run a recipe: a corpus from archive to error rate, stage by stage (also: recipe status, recipe new)."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tympan.recipe.options import RecipeOptions


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["new"]:
        from tympan.recipe.new import main as new

        return new(arguments[1:])
    from tympan.recipe.run import last_options, run_recipe, show_status

    if arguments[:1] == ["status"]:
        return show_status(_parse(arguments[1:]) if arguments[1:] else last_options())
    return run_recipe(_parse(arguments))


def _parse(arguments: Sequence[str]) -> RecipeOptions:
    from tympan.config import parse_args

    return parse_args(RecipeOptions, arguments, prog="tympan recipe", description=__doc__)


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
