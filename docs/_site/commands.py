"""The command reference as Markdown, from the option dataclasses that also make `--help`. Torch is not imported."""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

import tympan.config.help as help_texts
from tympan.bin.main import GROUPS, commands
from tympan.config import parse
from tympan.config.option import Option, options_of
from tympan.recipe.options import NewOptions, RecipeOptions
from tympan.tasks import TASKS

NEW_RECIPE = """
`tympan recipe new` makes a recipe directory for your own data ([tutorial](../tutorial.md)); its options are
[below](#tympan-recipe-new). `tympan recipe status` prints which stages are done.
"""


def pages() -> dict[str, str]:
    """Markdown by file name: an index and one page per command."""
    known = commands()
    found = {f"{name}.md": command_page(name, known[name]) for name in known}
    return {"index.md": index(known), **found}


def index(known: Mapping[str, str]) -> str:
    """The commands in the groups that `tympan` prints."""
    lines = ["# Commands", "", "Every command is `tympan COMMAND` or `python -m tympan.bin.COMMAND`.", ""]
    for title, names in GROUPS.items():
        lines += [f"## {title.capitalize()}", "", "| command | purpose |", "|---|---|"]
        lines += [f"| [`{name}`]({name}.md) | {_cell(known[name])} |" for name in names]
        lines.append("")
    return "\n".join(lines)


def command_page(name: str, purpose: str) -> str:
    """One command: purpose, usage, and a table per group of options."""
    lines = [f"# tympan {name}", "", purpose, ""]
    if name == "train":
        tasks = ", ".join(f"`{task}` (the options of [`{task}_train`]({task}_train.md))" for task in TASKS.names())
        own = "or `package.module:Class`, [a task of your own](../tasks.md)"
        return "\n".join([*lines, *_usage("train", "TASK"), f"`TASK` is {tasks}, {own}.", ""])
    options = options_of(RecipeOptions) if name == "recipe" else command_options(name)
    lines += _usage(name, *_arguments(options))
    if name == "recipe":
        lines.append(NEW_RECIPE)
    lines += ["`--help`, `--config FILE.yaml` and `--print_config` are options of every command", *_link(), ""]
    lines += _tables(options, level="##")
    if name == "recipe":
        new = options_of(NewOptions)
        lines += ["## tympan recipe new", "", *_usage("recipe new", *_arguments(new)), *_tables(new, level="###")]
    return "\n".join(lines)


def _usage(*words: str) -> list[str]:
    return ["```text", " ".join(["tympan", *words, "[options]"]), "```", ""]


def _arguments(options: Mapping[str, Option]) -> list[str]:
    return [item.flag if item.is_required else f"[{item.flag}]" for item in options.values() if item.extra.positional]


def _tables(options: Mapping[str, Option], *, level: str) -> list[str]:
    """A heading and a table per group of options."""
    lines = []
    for title, members in _groups(options):
        heading = f"{level} {title[:1].upper()}{title[1:]}"
        lines += [heading, "", "| option | value | default | meaning |", "|---|---|---|---|"]
        lines += [*(_row(item) for item in members), ""]
    return lines


def command_options(name: str) -> Mapping[str, Option]:
    """What the command passes to its parser."""
    found: list[Mapping[str, Option]] = []

    def catch(options: Mapping[str, Option], **_: object) -> str:
        found.append(options)
        return ""

    main = importlib.import_module(f"tympan.bin.{name}").main
    with (
        mock.patch.object(parse, "help_text", catch),
        contextlib.suppress(SystemExit),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        main(["--help"])
    (options,) = found
    return options


def _link() -> list[str]:
    return ["([configuration](../configuration.md))."]


def _groups(options: Mapping[str, Option]) -> Iterator[tuple[str, list[Option]]]:
    groups: dict[str, list[Option]] = {}
    for item in sorted(options.values(), key=lambda item: item.extra.not_yet is not None):
        groups.setdefault(item.extra.group, []).append(item)
    yield from groups.items()


def _row(item: Option) -> str:
    flags = ", ".join(f"`{flag}`" for flag in (item.flag, item.extra.short) if flag)
    value = "" if item.extra.positional else f"`{_cell(help_texts._metavar(item))}`"
    shown = help_texts._show(item.default)
    default = "required" if item.is_required else "" if item.is_conf or not shown else f"`{_cell(shown)}`"
    return f"| {flags} | {value} | {default} | {_cell(_meaning(item))} |"


def _meaning(item: Option) -> str:
    text = item.extra.help
    if item.extra.registry is not None and not item.is_conf:
        names = ", ".join(f"`{name}`" for name in item.extra.registry.names())
        text += f" ({names}; or `package.module:Class`)"
    return text


def _cell(text: Any) -> str:
    return str(text).replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


if __name__ == "__main__":
    import sys
    from pathlib import Path

    for file, text in pages().items():
        Path(sys.argv[1], file).write_text(text, encoding="utf-8")
