"""One parser for every command: defaults, then `--config` files from left to right, then the command line."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tympan.config.command_line import read_command_line
from tympan.config.espnet2 import own_keys
from tympan.config.help import help_text
from tympan.config.mistakes import Mistakes
from tympan.config.option import options_of
from tympan.config.registry import is_import
from tympan.config.resolve import PLAIN, Layer, Rules, resolve
from tympan.config.signature import REQUIRED
from tympan.config.yaml_text import dump_yaml, not_a_mapping, read_yaml
from tympan.errors import UserError

Schema = TypeVar("Schema")

STARTED_BY_US = "TYMPAN_LAUNCH_NOTES"
"""Environment variable that `runtime.launch` sets for the processes that it starts."""


def parse_args(
    schema: type[Schema],
    argv: Sequence[str] | None = None,
    *,
    prog: str,
    description: str | None = None,
    rules: Rules = PLAIN,
) -> Schema:
    """Parse the options of a command. `--help` and `--print_config` print and exit; mistakes raise one UserError."""
    options = options_of(schema)
    mistakes = Mistakes()
    line = read_command_line(sys.argv[1:] if argv is None else argv, options, mistakes)
    if "help" in line.switches:
        print(help_text(options, prog=prog, description=description), end="")
        raise SystemExit(0)
    layers = []
    for path in line.configs:
        try:
            layers.append(read_layer(Path(path), rules))
        except UserError as error:
            mistakes.add("", str(error))
    _tell(note for layer in layers for note in layer.notes)
    layers += [Layer(values, lambda path: options[path[0]].flag) for values in (line.resets, line.values)]
    is_print = "print_config" in line.switches
    # The content of an unreadable file is not known, so missing or conflicting options can't be reported.
    is_complete = not is_print and len(layers) == len(line.configs) + 2
    config = resolve(schema, layers, rules=rules, mistakes=mistakes, is_complete=is_complete)
    _tell(mistakes.notes)
    if is_print:
        print(dump_config(config), end="")
        raise SystemExit(0)
    return config


def _tell(notes: Iterable[str]) -> None:
    """Print notes once, not in every process of a run."""
    if os.environ.get("RANK", "0") == "0" and STARTED_BY_US not in os.environ:
        for note in notes:
            print(f"tympan: note: {note}", file=sys.stderr)


def read_layer(path: Path, rules: Rules = PLAIN) -> Layer:
    """Read a YAML file of options."""
    document = read_yaml(path)
    if document.value is None:
        document.value = {}
    if not isinstance(document.value, dict):
        raise UserError(not_a_mapping(document))
    if rules.translate is not None:
        document = rules.translate(document)
    return Layer(document.value, document.where, document.notes, is_file=True)


def dump_config(config: Any) -> str:
    """Return the YAML of `--print_config`: the resolved value of every option."""
    values = {name: getattr(config, name) for name in options_of(type(config))}
    return dump_yaml(as_yaml({key: item for key, item in values.items() if item is not REQUIRED}))


def dump_run_config(config: Any) -> str:
    """Return the YAML of a run's config.yaml: without the keys that ESPnet2 rejects, where they have their default."""
    changes = {}
    for name, option in options_of(type(config)).items():
        if option.extra.conf_of is None:
            continue
        chosen = getattr(config, option.extra.conf_of)
        registry = options_of(type(config))[option.extra.conf_of].extra.registry
        if chosen is None or registry is None or is_import(chosen):
            continue
        own = own_keys(name, chosen)
        parameters = registry.parameters(chosen) if own else {}
        values = getattr(config, name)
        kept = {
            key: value
            for key, value in values.items()
            if key not in own or as_yaml(value) != as_yaml(parameters[key].default)
        }
        if len(kept) < len(values):
            changes[name] = kept
    return dump_config(dataclasses.replace(config, **changes))


def as_yaml(value: Any) -> Any:
    """Convert values for YAML: dataclasses to mappings, tuples to lists, paths to strings."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return as_yaml(dataclasses.asdict(value))
    if isinstance(value, Mapping):
        return {str(key): as_yaml(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_yaml(item) for item in value]
    return str(value) if isinstance(value, Path) else value
