"""Names of classes, such as `--encoder conformer`; a class is imported only when it is chosen."""

from __future__ import annotations

import copy
import errno
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tympan.config.cast import CastError, cast
from tympan.config.mistakes import Mistakes, did_you_mean
from tympan.config.range import Range
from tympan.config.signature import REQUIRED, Parameter, import_class, read_signature
from tympan.errors import UserError

_MISTAKES = (ValueError, TypeError, ArithmeticError, AssertionError, LookupError, RuntimeError)
"""The errors that a class raises for values that don't fit together."""
_PATH_FAULTS = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EACCES)
_IMPORT = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


class Registry:
    """Case-insensitive names of `"module:Class"` strings; `package.module:Class` itself is a name too.

    `supplied` are parameters that the builder passes (sizes, the model's parameters); a configuration can't set them.
    `defaults` are ESPnet2's defaults where they differ from those of a class outside of Tympan.
    `ranges` are the ranges of keys that can't declare them (torch's classes), as `key` or `name.key`.
    `not_yet` are ESPnet2's names that Tympan does not have, with what to use instead.
    """

    def __init__(
        self,
        kind: str,
        targets: Mapping[str, str],
        *,
        supplied: Iterable[str] = (),
        defaults: Mapping[str, Mapping[str, Any]] | None = None,
        ranges: Mapping[str, Range] | None = None,
        not_yet: Mapping[str, str] | None = None,
    ) -> None:
        self.kind = kind
        self._targets = dict(targets)
        self._supplied = frozenset(supplied)
        self._defaults = dict(defaults or {})
        self._ranges = dict(ranges or {})
        self._not_yet = dict(not_yet or {})

    def for_option(self, option: str) -> Registry:
        """The same names for another option, such as `extra_asr_decoder`, which the messages then name."""
        other = copy.copy(self)
        other.kind = option
        return other

    def names(self) -> list[str]:
        """The names, in the order of registration."""
        return list(self._targets)

    def unsupported(self) -> dict[str, str]:
        """ESPnet2's names that Tympan does not have, with what to use instead."""
        return dict(self._not_yet)

    def canonical(self, name: str) -> str:
        """Return the name as it is registered; UserError if it is unknown."""
        if is_import(name):
            return name
        lowered = name.lower()
        if lowered in self._targets:
            return lowered
        if lowered in self._not_yet:
            raise UserError(f"ESPnet2's {self.kind} '{name}' is not supported; {self._not_yet[lowered]}")
        hint = did_you_mean(name, self._targets)
        known = ", ".join(self._targets) or "none"
        raise UserError(f"there is no {self.kind} '{name}'.{hint} Known: {known}; or package.module:Class")

    def registered(self, name: str) -> str:
        """Return a registered name; UserError for others, including `package.module:Class`.

        For names inside a `*_conf`: loading a model must not import classes, and `--allow_import` does not check them.
        """
        if is_import(name):
            raise UserError(f"there is no {self.kind} '{name}'. Known: {', '.join(self._targets)}")
        return self.canonical(name)

    def target(self, name: str) -> str:
        """The `"module:Class"` of a name."""
        canonical = self.canonical(name)
        if canonical not in self._targets and not canonical.startswith("tympan."):
            _look_in_working_directory()
        return self._targets.get(canonical, canonical)

    def get_class(self, name: str) -> type[Any]:
        """Import the class."""
        return import_class(self.target(name))

    def parameters(self, name: str) -> dict[str, Parameter]:
        """The keys that the class's `*_conf` may have."""
        canonical = self.canonical(name)
        changed = self._defaults.get(canonical, {})
        # In a user's class the same key may mean something else
        ranges = self._ranges if canonical in self._targets else {}
        return {
            key: Parameter(
                parameter.type,
                changed.get(key, parameter.default),
                ranges.get(f"{canonical}.{key}", ranges.get(key, parameter.range)),
            )
            for key, parameter in read_signature(self.target(name), self._supplied).items()
        }

    def build(self, name: str, conf: Mapping[str, Any] | None = None, /, *args: Any, **sizes: Any) -> Any:
        """Construct the class: `conf` is checked and completed; the builder supplies `args` and `sizes`."""
        mistakes = Mistakes()
        parameters = self.parameters(name)
        known = {key: item for key, item in (conf or {}).items() if key not in sizes}
        values = complete(
            known, parameters, owner=f"{self.kind} '{self.canonical(name)}'", mistakes=mistakes, where=str
        )
        for key, size in sizes.items():
            if (given := (conf or {}).get(key, size)) not in (None, size):
                mistakes.add(key, f"is {given}, but the input of this part has size {size}; remove it, or write {size}")
        for key, parameter in parameters.items():
            if parameter.default is REQUIRED and key not in values and key not in sizes:
                mistakes.add(key, f"the {self.kind} '{self.canonical(name)}' needs it")
        mistakes.check()
        values = {key: item for key, item in values.items() if key not in sizes}
        found = self.get_class(name)
        try:
            return found(*args, **values, **sizes)
        except UserError as error:
            option = f"{self.kind}_conf"
            if option in str(error):
                raise
            is_named = any(key in str(error) for key in values)
            given = "" if is_named else f" ({self._given(name, values)})"
            raise UserError(f"{option}: {error}{given}") from error
        except OSError as error:
            if error.errno not in _PATH_FAULTS:
                raise
            raise UserError(f"{self.kind}_conf: {error.filename}: {error.strerror}") from error
        except _MISTAKES as error:
            # An error in a user's class needs its traceback, and running out of memory has its own message
            if self.canonical(name) not in self._targets or "memory" in str(error):
                raise
            raise UserError(self._refusal(name, values, error)) from error

    def _refusal(self, name: str, values: Mapping[str, Any], error: Exception) -> str:
        """The error of a class about values that don't fit together, although each is within its range."""
        said = (str(error) or type(error).__name__).splitlines()[0]
        given = self._given(name, values)
        return f"{self.kind}_conf: the {self.kind} '{self.canonical(name)}' can't be built with {given}: {said}"

    def _given(self, name: str, values: Mapping[str, Any]) -> str:
        """The values that differ from the defaults, for a message."""
        defaults = {key: parameter.default for key, parameter in self.parameters(name).items()}
        # The same value in two forms: a list that was completed from a tuple
        changed = [
            f"{key}={item}" for key, item in values.items() if item not in (defaults[key], _as_list(defaults[key]))
        ]
        return ", ".join(changed) or "its defaults"


def _look_in_working_directory() -> None:
    """Add a directory of user modules to the end of the Python path, so that no file there can hide a package."""
    if not {"", os.getcwd()}.intersection(sys.path):
        sys.path.append(os.getcwd())


def is_import(name: str) -> bool:
    """Whether a name is `package.module:Class`, a user's class."""
    return _IMPORT.fullmatch(name) is not None


def complete(
    given: Mapping[str, Any],
    parameters: Mapping[str, Parameter],
    *,
    owner: str,
    mistakes: Mistakes,
    where: Callable[[str], str],
    prefix: str = "",
) -> dict[str, Any]:
    """Merge `given` into the defaults and cast every value; mistakes are added to `mistakes`.

    `where` returns the location of a key (dotted if nested) for messages. If a default is a mapping, its keys are the
    only keys that are allowed there.
    """
    result: dict[str, Any] = {}
    for key, parameter in parameters.items():
        if key not in given and parameter.default is REQUIRED:
            continue
        value = given.get(key, parameter.default)
        name = f"{prefix}{key}"
        if isinstance(parameter.default, Mapping) and parameter.default and isinstance(value, Mapping):
            inner = {
                item: Parameter(_type_like(default), default, parameter.range)
                for item, default in parameter.default.items()
            }
            result[key] = complete(value, inner, owner=owner, mistakes=mistakes, where=where, prefix=f"{name}.")
            continue
        try:
            result[key] = None if value is None and parameter.default is None else cast(value, parameter.type)
        except CastError as error:
            mistakes.add(where(name), str(error))
            continue
        fault = parameter.range.fault(result[key])
        if fault is not None:
            mistakes.add(where(name), fault)
    for key in given:
        if key not in parameters:
            hint = did_you_mean(key, parameters) or f" Its keys: {', '.join(parameters) or 'none'}"
            mistakes.add(where(f"{prefix}{key}"), f"the {owner} has no key '{prefix}{key}'.{hint}")
    return result


def _as_list(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _type_like(default: Any) -> Any:
    """The type of a key that has a default but no annotation."""
    return type(default) if isinstance(default, (bool, int, float, str)) else Any


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `over` into `base`, key by key at every depth."""
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        both = isinstance(value, Mapping) and isinstance(below, Mapping)
        result[key] = merged(below, value) if both else value  # type: ignore[arg-type]
    return result
