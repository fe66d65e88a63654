"""YAML in and out: safe, with the line of every value, and printed as ESPnet2 prints it.

Differs from PyYAML's safe_load where YAML 1.1 is surprising: `1e-3` is a number, `13_15` and `1:30` and dates are text,
a duplicate key is an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tympan.errors import UserError
from tympan.files import explained, read_text

_FLOAT = re.compile(
    r"^[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$|^[-+]?\.(?:inf|Inf|INF)$|^\.(?:nan|NaN|NAN)$"
)
_INT = re.compile(r"^-?(?:0|[1-9][0-9]*)$")
_KEEP = {"tag:yaml.org,2002:bool", "tag:yaml.org,2002:null", "tag:yaml.org,2002:merge"}

# A vocabulary may have 100,000 tokens; a few nested aliases in a malicious file could make billions of values.
_MOST_VALUES = 500_000

KeyPath = tuple[str | int, ...]


class WrittenFloat(float):
    """A float that remembers its text, for an option that turns out to be a text (a token `1e3`, a version `1.10`)."""

    text: str


@dataclass
class Document:
    """The value of a YAML file, and the line of each part of it."""

    name: str
    value: Any
    lines: dict[KeyPath, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """Notes of a translation from another toolkit's file."""

    def where(self, path: KeyPath) -> str:
        """`file:line` of the nearest part that has a line."""
        while path and path not in self.lines:
            path = path[:-1]
        return f"{self.name}:{self.lines[path]}" if path in self.lines else self.name


def read_yaml(path: Path) -> Document:
    """Read a YAML file; if it can't be read or parsed, raise a UserError with line and column."""
    return parse_yaml(read_text(path), str(path))


def not_a_mapping(document: Document) -> str:
    """The message about a file of options that contains something else."""
    found = document.value
    text = f"{document.name}: must be a mapping of options to values, found {type(found).__name__}"
    if isinstance(found, str) and found.endswith((".yaml", ".yml")):
        # Git writes a link as a text file where links are not supported.
        text += f". Its content is the path of another file; use that file: {Path(document.name).parent / found}"
    return text


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file as PyYAML's safe loader reads it, for values that are written to YAML again."""
    with explained(path, "YAML"):
        values = yaml.safe_load(read_text(path))
    if not isinstance(values, dict):
        raise UserError(f"{path}: must be a mapping of names to values")
    return values


def parse_yaml(text: str, name: str) -> Document:
    """Parse one YAML document."""
    document = Document(name, None)
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is not None:
                document.value = _construct(loader, node, (), document)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        what = ", ".join(part for part in (error.context, error.problem) if part)
        raise UserError(f"{place}: not valid YAML: {what}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f"{name}: not valid YAML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise UserError(f"{name}: not valid YAML: nested too deeply") from None
    return document


def dump_yaml(value: Any) -> str:
    """Block style, four spaces, keys in their order, no aliases: as ESPnet2 prints."""
    text: str = yaml.dump(
        value, Dumper=_Dumper, indent=4, sort_keys=False, allow_unicode=True, default_flow_style=False
    )
    return text


class _Loader(yaml.SafeLoader):
    pass


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def analyze_scalar(self, scalar: str) -> Any:
        """Escape unusual line breaks, which PyYAML would fold into spaces."""
        analysis = super().analyze_scalar(scalar)
        if any(char in scalar for char in "\x85\u2028\u2029"):
            analysis.allow_flow_plain = analysis.allow_block_plain = analysis.allow_single_quoted = False
        return analysis


def _limit_resolvers(owner: Any) -> None:
    owner.yaml_implicit_resolvers = {
        first: [(tag, regexp) for tag, regexp in rules if tag in _KEEP]
        for first, rules in owner.yaml_implicit_resolvers.items()
    }
    owner.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))
    owner.add_implicit_resolver("tag:yaml.org,2002:int", _INT, list("-0123456789"))


_limit_resolvers(_Loader)
# When printing, quote text that YAML 1.1 or our own rules would read as another type.
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))
_Dumper.add_multi_representer(float, yaml.SafeDumper.represent_float)
_Dumper.add_multi_representer(Path, lambda dumper, path: dumper.represent_str(str(path)))


def _construct(loader: _Loader, node: yaml.Node, path: KeyPath, document: Document) -> Any:
    document.lines.setdefault(path, node.start_mark.line + 1)
    if len(document.lines) > _MOST_VALUES:
        problem = f"more than {_MOST_VALUES} values (probably because of nested aliases)"
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
    if isinstance(node, yaml.MappingNode) and node.tag == "tag:yaml.org,2002:map":
        loader.flatten_mapping(node)
        return _construct_mapping(loader, node, path, document)
    if isinstance(node, yaml.SequenceNode) and node.tag == "tag:yaml.org,2002:seq":
        return [_construct(loader, item, (*path, index), document) for index, item in enumerate(node.value)]
    if node.tag == "tag:yaml.org,2002:float" and isinstance(node, yaml.ScalarNode):
        number = WrittenFloat(loader.construct_yaml_float(node))
        number.text = node.value
        return number
    value = loader.construct_object(node)
    # ESPnet2 writes tuples as lists, so a set, a date or bytes can only be a mistake.
    if value is not None and not isinstance(value, (str, int, float, bool)):
        problem = f"a value of kind {node.tag.rpartition(':')[2]} is not allowed here"
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
    return value


def _construct_mapping(loader: _Loader, node: yaml.MappingNode, path: KeyPath, document: Document) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            raise yaml.constructor.ConstructorError(None, None, "a key must be text", key_node.start_mark)
        key = str(key_node.value)
        if key in result:
            problem = f"duplicate key '{key}'"
            raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
        inner = (*path, key)
        document.lines[inner] = key_node.start_mark.line + 1
        result[key] = _construct(loader, value_node, inner, document)
    return result
