"""Cast what a user wrote to the type of the option: pydantic casts, this file adds ESPnet2's notations."""

from __future__ import annotations

import collections.abc
import functools
import types
import typing
from pathlib import Path
from typing import Any, Literal, Union

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError

from tympan.config.mistakes import did_you_mean, nearest
from tympan.config.yaml_text import WrittenFloat, parse_yaml
from tympan.errors import UserError

_NONE_WORDS = {"none", "null", "nil", "~"}
_SEQUENCES = (list, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)


class CastError(Exception):
    """The value does not fit the type; the message says what was expected and what was found."""


def cast(value: Any, wanted: Any) -> Any:
    """Return `value` as type `wanted`, or raise CastError."""
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if wanted is Any:
        return _plain(value)
    if origin in (Union, types.UnionType):
        return _cast_union(value, wanted, arguments)
    if origin in _SEQUENCES or wanted is list or (origin is tuple and arguments[-1:] == (Ellipsis,)):
        return _cast_list(value, wanted, arguments[0] if arguments else Any)
    if origin is tuple:
        return _cast_tuple(value, wanted, arguments)
    if wanted is dict or origin in (dict, collections.abc.Mapping):
        if not isinstance(value, dict):
            raise _refusal(value, wanted)
        return {key: cast(item, arguments[1] if arguments else Any) for key, item in value.items()}
    return _cast_scalar(value, wanted)


def from_text(text: str, wanted: Any) -> Any:
    """Convert one command-line word to a value for `cast`: text if the option is text, else read as YAML."""
    members = members_of(wanted)
    if text.lower() in _NONE_WORDS and type(None) in members:
        return None
    if any(_is_text(member) for member in members) and not text.startswith(("[", "{")):
        return text
    if any(typing.get_origin(member) is tuple for member in members) and not text.startswith("["):
        return text
    try:
        return parse_yaml(text, "value").value
    except UserError:
        # A value such as `-` or `@x` is not valid YAML. It stays text, so that the error says what was expected.
        return text


def describe(wanted: Any) -> str:
    """Describe a type in words, for messages and help."""
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if origin is Literal:
        words = {"None": "null", "True": "true", "False": "false"}
        return " | ".join(words.get(str(item), str(item)) for item in arguments)
    if origin in (Union, types.UnionType):
        return " | ".join(describe(item) for item in arguments)
    if wanted is type(None):
        return "null"
    if origin in _SEQUENCES or wanted is list or (origin is tuple and arguments[-1:] == (Ellipsis,)):
        return f"list of {describe(arguments[0])}" if arguments and arguments[0] is not Any else "list"
    if origin is tuple:
        return ",".join(describe(item) for item in arguments)
    if wanted is dict or origin in (dict, collections.abc.Mapping):
        return "mapping"
    names = {str: "text", bool: "true | false", Path: "path", Any: "anything"}
    return names.get(wanted, getattr(wanted, "__name__", str(wanted)))


def _cast_union(value: Any, wanted: Any, members: tuple[Any, ...]) -> Any:
    if type(None) in members and (value is None or (isinstance(value, str) and value.lower() in _NONE_WORDS)):
        return None
    candidates = [member for member in members if member is not type(None)]
    if len(candidates) == 1:
        try:
            return cast(value, candidates[0])
        except CastError:
            raise _refusal(value, wanted) from None
    plain = float(value) if isinstance(value, WrittenFloat) else value
    exact = [member for member in candidates if type(plain) is member]
    if not isinstance(plain, (list, tuple)):
        # A single value becomes a list of one only if no other type accepts it.
        candidates.sort(key=_is_sequence)
    for member in exact + candidates:
        try:
            return cast(value, member)
        except CastError:
            continue
    raise _refusal(value, wanted)


def _cast_list(value: Any, wanted: Any, item_type: Any) -> list[Any]:
    if isinstance(value, dict) or value is None:
        raise _refusal(value, wanted)
    items = value if isinstance(value, (list, tuple)) else [value]
    return [cast(item, item_type) for item in items]


def _cast_tuple(value: Any, wanted: Any, members: tuple[Any, ...]) -> tuple[Any, ...]:
    """ESPnet2's `path,name,type`: the path may contain commas, so split from the right."""
    parts = value
    if isinstance(value, str):
        words = value.strip().removeprefix("(").removesuffix(")").rsplit(",", len(members) - 1)
        parts = [word.strip() for word in words]
    if not isinstance(parts, (list, tuple)) or len(parts) != len(members):
        raise _refusal(value, wanted)
    return tuple(cast(item, member) for item, member in zip(parts, members, strict=True))


def _cast_scalar(value: Any, wanted: Any) -> Any:
    if _is_text(wanted):
        if isinstance(value, WrittenFloat):
            value = value.text
        elif isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        elif typing.get_origin(wanted) is Literal and isinstance(value, str):
            value = next((item for item in typing.get_args(wanted) if item.lower() == value.lower()), value)
    is_number = wanted in (int, float)
    if (is_number and isinstance(value, bool)) or (wanted is bool and type(value) in (int, float, WrittenFloat)):
        raise _refusal(value, wanted)
    if is_number and isinstance(value, str) and ("_" in value or not value.isascii()):
        raise _refusal(value, wanted)  # Python reads 5_12 as 512
    try:
        result = _adapter(wanted).validate_python(_plain(value))
    except ValidationError:
        raise _refusal(value, wanted) from None
    return float(result) if wanted is float else result


def _plain(value: Any) -> Any:
    """Replace floats that remember their text by plain floats."""
    if isinstance(value, WrittenFloat):
        return float(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


@functools.cache
def _adapter(wanted: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(wanted, config=ConfigDict(arbitrary_types_allowed=True))
    except PydanticUserError:
        # Dataclasses and pydantic models have their own configuration.
        return TypeAdapter(wanted)


def members_of(wanted: Any) -> tuple[Any, ...]:
    if typing.get_origin(wanted) in (Union, types.UnionType):
        return typing.get_args(wanted)
    return (wanted,)


def _is_text(wanted: Any) -> bool:
    is_words = typing.get_origin(wanted) is Literal and all(isinstance(item, str) for item in typing.get_args(wanted))
    return wanted is str or wanted is Path or is_words


def _is_sequence(wanted: Any) -> bool:
    origin: Any = typing.get_origin(wanted) or wanted
    return origin is tuple or origin in _SEQUENCES


def _refusal(value: Any, wanted: Any) -> CastError:
    shown = "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(_plain(value))
    kinds = {str: "text", int: "a whole number", bool: "true or false", dict: "a mapping", list: "a list"}
    kind = "a number" if isinstance(value, float) else kinds.get(type(value), "")
    note = "" if value is None or isinstance(value, bool) else f" ({kind})" if kind else ""
    words = [item for member in members_of(wanted) for item in _words(member)]
    hint = f".{did_you_mean(value, words)}" if isinstance(value, str) and nearest(value, words) else ""
    return CastError(f"expects {describe(wanted)}, found {shown}{note}{hint}")


def _words(wanted: Any) -> list[str]:
    """The words that a choice allows."""
    is_choice = typing.get_origin(wanted) is Literal
    return [item for item in typing.get_args(wanted) if isinstance(item, str)] if is_choice else []
