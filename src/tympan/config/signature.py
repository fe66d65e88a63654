"""The keys that a `*_conf` may have: the parameters of a class's `__init__`, with types and defaults.

Read from the source where that is enough, because `--print_config` would otherwise spend most of its time importing
torch; otherwise the class is imported and inspected. A test compares the two.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import importlib.util
import inspect
import sys
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tympan.config.range import FINITE, Range
from tympan.errors import UserError

REQUIRED: Any = dataclasses.MISSING

# Types that a configuration can't hold: they are removed from unions, and the builder supplies their parameters.
_NOT_CONFIGURABLE = {"Tensor", "torch.Tensor", "nn.Module", "torch.nn.Module", "Module", "ParamsT", "Optimizer"}
_SIMPLE: dict[str, Any] = {
    "int": int,
    "float": float,
    "str": str,
    "bool": bool,
    "dict": dict,
    "list": list,
    "None": type(None),
    "Any": Any,
    "Path": Path,
    "object": Any,
}
_GENERIC: dict[str, Any] = {
    "list": list,
    "List": list,
    "Sequence": list,
    "Iterable": list,
    "dict": dict,
    "Dict": dict,
    "Mapping": dict,
}


@dataclass(frozen=True)
class Parameter:
    """One key: its type, its default (REQUIRED if it has none), and the range of its numbers."""

    type: Any
    default: Any = REQUIRED
    range: Range = FINITE


class _Unreadable(Exception):
    """The source is not enough; import the class instead."""


@functools.cache
def read_signature(target: str, supplied: frozenset[str] = frozenset()) -> dict[str, Parameter]:
    """The parameters of `"module:Class"`, except those that the builder supplies."""
    try:
        return signature_from_source(target, supplied)
    except _Unreadable:
        return signature_from_class(import_class(target), supplied)


def import_class(target: str) -> type[Any]:
    """Import `"module:Class"`."""
    module_name, _, class_name = target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise
        raise UserError(f"'{target}': there is no module '{error.name}' on the Python path") from None
    found = getattr(module, class_name, None)
    if not isinstance(found, type):
        raise UserError(f"'{target}': the module '{module_name}' has no class '{class_name}'")
    return found


def signature_from_class(found: type[Any], supplied: frozenset[str] = frozenset()) -> dict[str, Parameter]:
    """Read the signature by inspecting the class."""
    parameters = inspect.signature(found.__init__).parameters
    try:
        hints = typing.get_type_hints(found.__init__, include_extras=True)
    except NameError:
        hints = {}
    result = {}
    for name, parameter in list(parameters.items())[1:]:
        if name in supplied or parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        default = REQUIRED if parameter.default is parameter.empty else parameter.default
        if not _is_plain(default):
            # A default that YAML can't hold (a layer, a function) can't be configured.
            continue
        annotation, range_ = _split(hints.get(name, parameter.annotation))
        result[name] = Parameter(_or_from_default(_known(annotation), default), default, range_)
    return result


def signature_from_source(target: str, supplied: frozenset[str] = frozenset()) -> dict[str, Parameter]:
    """Read the signature from the source file; _Unreadable if literals and simple types are not enough."""
    module_name, _, class_name = target.partition(":")
    source = _source_file(module_name)
    if source is None:
        raise _Unreadable
    for node in _parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and item.name == "__init__":
                    return _read_arguments(item.args, supplied)
    raise _Unreadable


def _read_arguments(arguments: ast.arguments, supplied: frozenset[str]) -> dict[str, Parameter]:
    positional = [*arguments.posonlyargs, *arguments.args]
    missing: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    pairs = list(zip(positional, [*missing, *arguments.defaults], strict=True))[1:]
    pairs += list(zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True))
    result = {}
    for argument, default_node in pairs:
        if argument.arg in supplied:
            continue
        default = REQUIRED
        if default_node is not None:
            try:
                default = ast.literal_eval(default_node)
            except ValueError:
                raise _Unreadable from None
        node, range_ = _split_node(argument.annotation)
        annotation = None if node is None else _type_of(node)
        result[argument.arg] = Parameter(_or_from_default(annotation, default), default, range_)
    return result


def _split(annotation: Any) -> tuple[Any, Range]:
    """Split `Annotated[float, Range(0, 1)]` into type and range."""
    if isinstance(annotation, str):
        node, found = _split_node(ast.parse(annotation, mode="eval").body)
        return ast.unparse(node) if node is not None else annotation, found
    if typing.get_origin(annotation) is not typing.Annotated:
        return annotation, FINITE
    inner, *notes = typing.get_args(annotation)
    return inner, next((note for note in notes if isinstance(note, Range)), FINITE)


def _split_node(node: ast.expr | None) -> tuple[ast.expr | None, Range]:
    """The same from the source."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        node = ast.parse(node.value, mode="eval").body
    if not isinstance(node, ast.Subscript) or ast.unparse(node.value).rpartition(".")[2] != "Annotated":
        return node, FINITE
    if not isinstance(node.slice, ast.Tuple):
        raise _Unreadable
    inner, *notes = node.slice.elts
    return inner, next((_range_of(note) for note in notes if _is_range(note)), FINITE)


def _is_range(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "Range"


def _range_of(node: ast.expr) -> Range:
    assert isinstance(node, ast.Call)
    try:
        named = {item.arg: ast.literal_eval(item.value) for item in node.keywords if item.arg is not None}
        return Range(*(ast.literal_eval(item) for item in node.args), **named)
    except (ValueError, TypeError):
        raise _Unreadable from None


def _type_of(node: ast.expr) -> Any:
    """Return a type from its source; None if a configuration can't hold it."""
    if isinstance(node, ast.Constant):
        if node.value is None:
            return type(None)
        if isinstance(node.value, str):
            return _type_of(ast.parse(node.value, mode="eval").body)
    if isinstance(node, ast.Name | ast.Attribute):
        name = ast.unparse(node)
        if name in _NOT_CONFIGURABLE:
            return None
        if name.rpartition(".")[2] in _SIMPLE:
            return _SIMPLE[name.rpartition(".")[2]]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _union([_type_of(node.left), _type_of(node.right)])
    if isinstance(node, ast.Subscript):
        return _generic(ast.unparse(node.value).rpartition(".")[2], node.slice)
    raise _Unreadable


def _generic(name: str, node: ast.expr) -> Any:
    items = node.elts if isinstance(node, ast.Tuple) else [node]
    if name == "Literal":
        try:
            return typing.Literal[tuple(ast.literal_eval(item) for item in items)]
        except ValueError:
            raise _Unreadable from None
    members = [... if isinstance(item, ast.Constant) and item.value is ... else _type_of(item) for item in items]
    if name == "Optional":
        return _union([*members, type(None)])
    if name == "Union":
        return _union(members)
    if None in members:
        return None
    if name in ("tuple", "Tuple"):
        return tuple[tuple(members)]  # type: ignore[misc]
    if name in _GENERIC:
        return _GENERIC[name][tuple(members) if len(members) > 1 else members[0]]
    raise _Unreadable


def _union(members: list[Any]) -> Any:
    known = [member for member in members if member is not None]
    return typing.Union[tuple(known)] if known else None  # noqa: UP007


def _known(annotation: Any) -> Any:
    """Like `_type_of`, but from the type itself (or its text, if a name in the signature can't be resolved)."""
    if isinstance(annotation, str):
        try:
            return _type_of(ast.parse(annotation, mode="eval").body)
        except _Unreadable:
            return None
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return _union([_known(member) for member in arguments])
    if origin is typing.Literal or not arguments:
        is_foreign = getattr(annotation, "__module__", "").partition(".")[0] == "torch"
        return None if is_foreign or annotation is inspect.Parameter.empty else annotation
    if origin.__module__ == "collections.abc" and origin.__name__ not in _GENERIC:
        return None
    members = [member if member is ... else _known(member) for member in arguments]
    if None in members:
        return None
    name = origin.__name__
    if name == "tuple":
        return tuple[tuple(members)]  # type: ignore[misc]
    return _GENERIC[name][tuple(members) if len(members) > 1 else members[0]] if name in _GENERIC else annotation


def _or_from_default(annotation: Any, default: Any) -> Any:
    """An unannotated parameter has the type of its default, if the default has a useful type."""
    if annotation is not None:
        return annotation
    if isinstance(default, bool | int | float | str):
        # A default of 0 may be a rate or a number of layers.
        return int | float if type(default) is int else type(default)
    return Any


def _is_plain(default: Any) -> bool:
    return default is REQUIRED or default is None or isinstance(default, bool | int | float | str | list | tuple | dict)


@functools.cache
def _parse(source: Path) -> ast.Module:
    return ast.parse(source.read_text(encoding="utf-8"))


def _source_file(module_name: str) -> Path | None:
    """Find the source file of a module without importing its parents (find_spec would import them)."""
    if module_name in sys.modules:
        file = getattr(sys.modules[module_name], "__file__", None)
        return Path(file) if file and file.endswith(".py") else None
    top, *rest = module_name.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if not rest:
        return Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None
    for location in spec.submodule_search_locations or []:
        base = Path(location, *rest)
        for candidate in (base.with_name(f"{base.name}.py"), base / "__init__.py"):
            if candidate.is_file():
                return candidate
    return None
