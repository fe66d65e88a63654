"""The text of `--help`: argparse does the layout, the options provide the content."""

from __future__ import annotations

import argparse
import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

from tympan.config.cast import describe, members_of
from tympan.config.option import Option

OURS = "Tympan"


def help_text(options: Mapping[str, Option], *, prog: str, description: str | None) -> str:
    """The options in their groups, each with its choices or type and its default."""
    parser = argparse.ArgumentParser(
        prog=prog, description=description, add_help=False, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.usage = " ".join([prog, *(_usage(item) for item in options.values() if item.extra.positional), "[options]"])
    general = parser.add_argument_group("general")
    general.add_argument("--help", action="store_true", help="show this help and exit")
    general.add_argument(
        "--config",
        metavar="FILE.yaml",
        help="YAML file of options, overridden by options on the command line; may be repeated, later files "
        "override earlier ones",
    )
    general.add_argument("--print_config", action="store_true", help="print all options as YAML and exit")
    groups: dict[str, list[Option]] = {}
    for item in sorted(options.values(), key=lambda item: item.extra.not_yet is not None):
        groups.setdefault(item.extra.group, []).append(item)
    for title, members in groups.items():
        group = parser.add_argument_group(title)
        for item in members:
            names = [item.name] if item.extra.positional else [item.flag, *filter(None, [item.extra.short])]
            group.add_argument(*names, metavar=_metavar(item), help=_help(item))
    if any(f"({OURS})" in item.extra.help for item in options.values()):
        parser.epilog = f"({OURS}) marks options that ESPnet does not have."
    return parser.format_help()


def _usage(item: Option) -> str:
    return item.flag if item.is_required else f"[{item.flag}]"


def _metavar(item: Option) -> str:
    if item.extra.positional:
        return item.flag
    if item.is_conf:
        return "KEY=VALUE"
    if item.extra.registry is not None:
        return "NAME"
    return _form(item.type)


def _form(wanted: Any) -> str:
    """Describe a type by how its values are typed."""
    members = members_of(wanted)
    if len(members) > 1:
        return "|".join(_form(member) for member in members)
    origin, inner = typing.get_origin(wanted), typing.get_args(wanted)
    if origin is list:
        return f"{_form(inner[0])}..."
    if origin is tuple:
        return ",".join(_form(member) for member in inner)
    return describe(wanted).replace(" | ", "|")


def _help(item: Option) -> str:
    text = item.extra.help
    if item.extra.registry is not None and not item.is_conf:
        names = ", ".join(item.extra.registry.names())
        text += f" ({names}; or package.module:Class)" if names else " (package.module:Class)"
    if item.extra.range:
        text += f" ({item.extra.range})"
    if item.is_required or item.is_conf:
        return text.replace("%", "%%")
    return f"{text} [{_show(item.default)}]".lstrip().replace("%", "%%")


def _show(value: Any) -> str:
    if value is None or value is dataclasses.MISSING:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return (
            ", ".join(",".join(map(str, item)) if isinstance(item, tuple) else _show(item) for item in value) or "none"
        )
    return str(value)
