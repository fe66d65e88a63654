"""Merge layers of options (defaults, files, command line) into one checked configuration."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tympan.config.cast import CastError, cast
from tympan.config.mistakes import Mistakes, nearest
from tympan.config.option import Option, options_of
from tympan.config.registry import complete
from tympan.config.signature import REQUIRED, Parameter
from tympan.config.yaml_text import Document
from tympan.errors import UserError

Schema = TypeVar("Schema")
KeyPath = tuple[str, ...]


@dataclass(frozen=True)
class Layer:
    """Options from one source; `where` returns the location of a key for messages."""

    values: Mapping[str, Any]
    where: Callable[[KeyPath], str]
    notes: tuple[str, ...] = ()
    is_file: bool = False
    """Whether it is a configuration file, and not options of the command line or of Python."""


@dataclass(frozen=True)
class Conflict:
    """Options that can't be used together; the message is about the first one."""

    names: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class Rules:
    """What a command adds to the parsing of its options.

    `translate` translates a file of another toolkit; `add_layers` adds the options of files that the options name;
    `lacking` are ESPnet2's keys of a `*_conf` that Tympan's class does not have, by `option:class`, with ESPnet2's
    defaults; `check` finds options that exclude or need each other; `check_always` finds mistakes within one option,
    also in an incomplete configuration.
    """

    translate: Callable[[Document], Document] | None = None
    add_layers: Callable[[Sequence[Layer], Mistakes], Sequence[Layer]] | None = None
    lacking: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    check: Callable[[Mapping[str, Any]], Iterable[Conflict]] | None = None
    check_always: Callable[[Mapping[str, Any]], Iterable[Conflict]] | None = None


PLAIN = Rules()


def resolve(
    schema: type[Schema],
    layers: Sequence[Layer],
    *,
    rules: Rules = PLAIN,
    mistakes: Mistakes | None = None,
    is_complete: bool = True,
) -> Schema:
    """Merge the layers into the defaults, cast, complete every `*_conf` and check; one UserError reports all mistakes.

    An incomplete configuration (as for `--print_config`) may lack required options.
    """
    return schema(**_Resolver(schema, layers, rules, mistakes or Mistakes(), is_complete).run())


class _Resolver:
    def __init__(
        self, schema: type[Any], layers: Sequence[Layer], rules: Rules, mistakes: Mistakes, is_complete: bool
    ) -> None:
        self.options = options_of(schema)
        self.rules = rules
        self.mistakes = mistakes
        self.is_complete = is_complete
        self.given: dict[str, Any] = {}
        self.origin: dict[KeyPath, str] = {}
        self.values: dict[str, Any] = {}
        self.wrong: set[str] = set()
        for layer in layers if rules.add_layers is None else rules.add_layers(layers, mistakes):
            self._add(layer)

    def run(self) -> dict[str, Any]:
        for option in self.options.values():
            if not option.is_conf:
                self.values[option.name] = self._watched(option, self._value)
        for option in self.options.values():
            if option.is_conf:
                self.values[option.name] = self._watched(option, self._conf)
            if self.is_complete and self.values[option.name] is REQUIRED:
                self.mistakes.add("", f"{option.flag} is required ({option.extra.help})")
            if option.is_required and self.values[option.name] == []:
                self.mistakes.add(self._where(option.name), "needs at least one value")
        if self.is_complete:
            self._check_ranges()
        for check in (self.rules.check_always, self.rules.check if self.is_complete else None):
            for conflict in () if check is None else check(self.values):
                # An option that was rejected is at its default here: don't report it a second time.
                if not self.wrong.intersection(conflict.names):
                    self.mistakes.add(self._where(conflict.names[0]), conflict.text)
        self.mistakes.check()
        return {name: self.values[name] for name in self.options}

    def _check_ranges(self) -> None:
        for option in self.options.values():
            # The keys of a `*_conf` were checked with their own ranges.
            fault = None if option.is_conf else option.extra.range.fault(self.values[option.name])
            if fault is not None and option.name not in self.wrong:
                self.mistakes.add(self._where(option.name), fault)

    def _watched(self, option: Option, resolve_one: Callable[[Option], Any]) -> Any:
        """Resolve one option and record whether it was wrong."""
        before = len(self.mistakes.found)
        value = resolve_one(option)
        if len(self.mistakes.found) > before:
            self.wrong.add(option.name)
        return value

    def _where(self, *path: str) -> str:
        """The location of an option or of a key in it, with its name unless the location contains it."""
        place = self.origin.get(path) or self.origin.get(path[:1]) or self.options[path[0]].flag
        if place == self.options[path[0]].flag:
            return f"{place} {'.'.join(path[1:])}".rstrip()
        return f"{place}: {'.'.join(path)}"

    def _add(self, layer: Layer) -> None:
        for name, value in layer.values.items():
            if name not in self.options:
                near = nearest(name, self.options)
                hint = f" Did you mean '{near}'?" if near else ""
                self.mistakes.add(layer.where((name,)), f"unknown option '{name}'.{hint}")
            elif self.options[name].is_conf and value is None:
                self.given.pop(name, None)  # a null removes what the layers below gave
            elif self.options[name].is_conf and isinstance(value, Mapping):
                self.given[name] = self._overlay(self.given.get(name), value, (name,), layer)
            else:
                self.given[name] = value
                self.origin[(name,)] = layer.where((name,))

    def _overlay(self, below: Any, over: Mapping[str, Any], path: KeyPath, layer: Layer) -> dict[str, Any]:
        """Merge `over` into `below`, key by key at any depth."""
        self.origin[path] = layer.where(path)
        result = dict(below) if isinstance(below, dict) else {}
        for key, value in over.items():
            inner = (*path, key)
            if isinstance(value, Mapping):
                result[key] = self._overlay(result.get(key), value, inner, layer)
            else:
                result[key] = value
                self.origin[inner] = layer.where(inner)
        return result

    def _value(self, option: Option) -> Any:
        if option.name not in self.given:
            return option.default
        where = self._where(option.name)
        try:
            given = self.given[option.name]
            if isinstance(given, str):
                given = option.extra.aliases.get(given, given)
                if given in option.extra.not_yet_values:
                    instead = option.extra.not_yet_values[given]
                    raise UserError(f"'{given}' of ESPnet2 is not supported; {instead}")
            value = cast(given, option.type)
            if option.extra.registry is not None and value is not None:
                value = option.extra.registry.canonical(value)
        except (CastError, UserError) as error:
            self.mistakes.add(where, str(error))
            return option.default
        if option.extra.not_yet is not None and value != option.default:
            self.mistakes.add(where, f"this option of ESPnet2 is not supported; {option.extra.not_yet}")
        return value

    def _conf(self, option: Option) -> Any:
        given = self.given.get(option.name, {})
        if not isinstance(given, dict):
            self.mistakes.add(self._where(option.name), f"expects a mapping, found {given!r}")
            return {}
        if option.extra.conf_of is None and option.extra.registry is None:
            return self._free_conf(option, given)
        if option.extra.conf_of in self.wrong:
            return {}  # the class that these keys belong to is unknown
        try:
            owner, parameters = self._parameters(option)
        except UserError as error:
            self.mistakes.add(self._where(option.name), str(error))
            return {}
        if parameters is None:
            self._leave_out(option, given)
            return {}
        result = complete(
            self._without_lacking(option, owner, given, parameters),
            parameters,
            owner=owner,
            mistakes=self.mistakes,
            where=lambda key: self._where(option.name, *key.split(".")),
        )
        if self.is_complete:
            for key, parameter in parameters.items():
                if parameter.default is REQUIRED and key not in given:
                    self.mistakes.add(self._where(option.name), f"the {owner} needs the key '{key}'")
        return result

    def _leave_out(self, option: Option, given: Mapping[str, Any]) -> None:
        """The keys of a class that is null. Those of a file are ignored, as in ESPnet2."""
        where, chooser = self._where(option.name), f"--{option.extra.conf_of}"
        if given and where.startswith(option.flag):
            self.mistakes.add(
                where, f"has keys, but {chooser} is null: remove the keys, or choose a value for {chooser}"
            )
        elif given:
            self.mistakes.notes.append(f"{where} is not used, because {chooser} is null")

    def _free_conf(self, option: Option, given: dict[str, Any]) -> Any:
        if option.extra.not_yet is not None and given != (option.default or {}):
            self.mistakes.add(
                self._where(option.name),
                f"this option of ESPnet2 is not supported; {option.extra.not_yet}",
            )
        if option.name not in self.given:
            return option.default
        try:
            return cast(given, option.type)
        except CastError as error:
            self.mistakes.add(self._where(option.name), str(error))
            return option.default

    def _parameters(self, option: Option) -> tuple[str, dict[str, Parameter] | None]:
        if option.extra.registry is not None:
            (only,) = option.extra.registry.names()
            return option.extra.registry.kind, option.extra.registry.parameters(only)
        chooser = self.options[option.extra.conf_of or ""]
        name = self.values[chooser.name]
        if name is None or chooser.extra.registry is None:
            return option.name, None
        return f"{chooser.extra.registry.kind} '{name}'", chooser.extra.registry.parameters(name)

    def _without_lacking(
        self, option: Option, owner: str, given: dict[str, Any], parameters: Mapping[str, Parameter]
    ) -> dict[str, Any]:
        """Drop keys that only ESPnet2's class has if they are at its default, which does not change the model."""
        chosen = self.values.get(option.extra.conf_of or "", "")
        lacking = self.rules.lacking.get(f"{option.name}:{chosen}", {})
        kept = {}
        for key, value in given.items():
            if key in lacking and value != lacking[key]:
                where = self._where(option.name, key)
                self.mistakes.add(
                    where, f"ESPnet2's {owner} has this key; Tympan accepts only its default, {lacking[key]!r}"
                )
            elif key in parameters or key not in lacking:
                kept[key] = value
        return kept
