"""Options are fields of a frozen dataclass; this file defines what a field holds besides name, type and default."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tympan.config.cast import CastError, cast
from tympan.config.range import FINITE, Range
from tympan.config.registry import Registry

_KEY = "tympan"
_NONE: Any = dataclasses.MISSING


@dataclass(frozen=True)
class Extra:
    """The metadata that `option`, `choice` and the like store in a field."""

    help: str
    group: str = "options"
    positional: bool = False
    registry: Registry | None = None
    conf_of: str | None = None
    not_yet: str | None = None
    not_yet_values: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    short: str | None = None
    range: Range = FINITE


@dataclass(frozen=True)
class Option:
    """One option as the parser sees it."""

    name: str
    type: Any
    default: Any
    extra: Extra

    @property
    def is_required(self) -> bool:
        return self.default is dataclasses.MISSING

    @property
    def is_conf(self) -> bool:
        """Whether the option is a dict, which is merged key by key."""
        return _is_dict(self.type)

    @property
    def flag(self) -> str:
        """The option as a user types it, such as `--batch_size`."""
        return self.name.upper() if self.extra.positional else f"--{self.name}"


def argument(default: Any = _NONE, *, help: str) -> Any:
    """A positional argument; `list[...]` takes one or more (or none, if it has a default)."""
    return _field(default, Extra(help, group="arguments", positional=True))


def option(
    default: Any = _NONE,
    *,
    help: str,
    group: str = "options",
    not_yet_values: Mapping[str, str] | None = None,
    aliases: Mapping[str, str] | None = None,
    short: str | None = None,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    allows_inf: bool = False,
) -> Any:
    """An option `--name`; without a default it must be given.

    `not_yet_values` are values that ESPnet2 accepts and Tympan does not, with what to use instead.
    `short` is a second flag, such as `-o`, for users of the original tool. Numbers outside of
    the range (see `Range`) are rejected.
    """
    return _field(
        default,
        Extra(
            help,
            group=group,
            not_yet_values=not_yet_values or {},
            aliases=aliases or {},
            short=short,
            range=Range(least, most, above, below, allows_inf),
        ),
    )


def choice(registry: Registry, default: str | None, *, help: str, group: str) -> Any:
    """The name of a class in `registry`, or `package.module:Class`."""
    return _field(default, Extra(help, group=group, registry=registry))


def conf_of(name: str, *, help: str, group: str) -> Any:
    """The keyword arguments of the class that option `name` chooses: its defaults come from the class itself."""
    return _field({}, Extra(help, group=group, conf_of=name))


def conf_for(registry: Registry, *, help: str, group: str) -> Any:
    """The keyword arguments of the one class in `registry`."""
    return _field({}, Extra(help, group=group, registry=registry))


def not_yet(default: Any, *, instead: str) -> Any:
    """An option that ESPnet2 has and Tympan does not: accepted at ESPnet2's default, rejected otherwise."""
    group = "ESPnet2 options that Tympan does not have yet"
    return _field(default, Extra(f"not supported; {instead}", group=group, not_yet=instead))


def options_of(schema: type[Any]) -> dict[str, Option]:
    """The options of a dataclass, in their order. Fields made with plain defaults are options without help.

    A class variable `OPTION_ORDER` names options that come in that order; each of the others follows its predecessor.
    """
    key: object = schema
    types = _types(key)
    found = {}
    for item in dataclasses.fields(schema):
        default = item.default
        if item.default_factory is not dataclasses.MISSING:
            default = item.default_factory()
        extra = item.metadata.get(_KEY, Extra(help=""))
        found[item.name] = Option(item.name, types[item.name], default, extra)
    return _ordered(found, getattr(schema, "OPTION_ORDER", ()))


@functools.cache
def _types(schema: Any) -> dict[str, Any]:
    """The types of the fields. Evaluating the annotations of 200 options takes 10 ms."""
    return typing.get_type_hints(schema)


def range_faults(options: Any) -> list[str]:
    """List the values that are outside of their declared range, for options made in Python."""
    faults = {name: item.extra.range.fault(getattr(options, name)) for name, item in options_of(type(options)).items()}
    return [f"{name} {fault}" for name, fault in faults.items() if fault is not None]


def option_faults(options: Any, schema: type[Any]) -> list[str]:
    """List the values of the wrong type or outside of their range, for options made in Python."""
    faults = []
    for name, item in options_of(schema).items():
        try:
            fault = item.extra.range.fault(cast(getattr(options, name), item.type))
        except CastError as error:
            fault = str(error)
        if fault is not None:
            faults.append(f"{name} {fault}")
    return faults


def _ordered(options: dict[str, Option], order: Sequence[str]) -> dict[str, Option]:
    ranks = {name: rank for rank, name in enumerate(order)}
    keys: dict[str, int] = {}
    last = -1
    for name in options:
        last = keys[name] = ranks.get(name, last)
    return {name: options[name] for name in sorted(options, key=keys.__getitem__)}


def _field(default: Any, extra: Extra) -> Any:
    metadata = {_KEY: extra}
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: _copy(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def _is_dict(annotation: Any) -> bool:
    """A mapping, or a mapping that may be null."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return any(_is_dict(part) for part in typing.get_args(annotation))
    return annotation is dict or typing.get_origin(annotation) is dict
