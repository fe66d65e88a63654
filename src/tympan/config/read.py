"""Read the configuration of a training command or of a trained model."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tympan.config.deepspeed import add_deepspeed
from tympan.config.espnet1 import translate_espnet1
from tympan.config.espnet2 import LACKING, today
from tympan.config.lightning import translate_lightning
from tympan.config.mistakes import Mistakes
from tympan.config.option import options_of
from tympan.config.parse import parse_args, read_layer
from tympan.config.registry import is_import
from tympan.config.resolve import Layer, Rules, resolve
from tympan.config.train import TrainConfig
from tympan.config.yaml_text import Document
from tympan.errors import UserError

logger = logging.getLogger(__name__)

Config = TypeVar("Config", bound=TrainConfig)


def parse_training(
    schema: type[Config],
    argv: Sequence[str] | None = None,
    *,
    prog: str,
    description: str | None = None,
) -> Config:
    """Parse the options of a training command and check what can be checked without reading data."""
    rules = dataclasses.replace(RULES, check=schema.conflicts, check_always=schema.faults)
    return parse_args(schema, argv, prog=prog, description=description, rules=rules)


def make_training_config(
    schema: type[Config], files: Sequence[str | Path] = (), options: Mapping[str, Any] | None = None
) -> Config:
    """The same from Python: files from left to right, then options by name. One UserError reports all mistakes."""
    layers = [read_layer(Path(path), RULES) for path in files]
    layers.append(Layer(dict(options or {}), ".".join))
    return resolve(schema, layers, rules=dataclasses.replace(RULES, check=schema.conflicts))


def load_training_config(schema: type[Config], path: str | Path, *, allow_import: bool = False) -> Config:
    """The configuration of a trained model: Tympan's config.yaml or ESPnet2's.

    A config that names a class by `package.module:Class` would run its code when the model is loaded: it is rejected
    unless allowed. Unknown training options (of another toolkit or version) give a warning, because they don't change
    the model; unknown options of the model are errors.
    """
    return _training_config(schema, read_layer(Path(path), MODEL_RULES), allow_import=allow_import)


def training_config_of(schema: type[Config], values: Mapping[str, Any], source: object) -> Config:
    """The configuration of a trained model with these values. `source` is named in error messages."""
    return _training_config(schema, Layer(dict(values), lambda path: f"{source}: {'.'.join(path)}"), allow_import=False)


def _training_config(schema: type[Config], layer: Layer, *, allow_import: bool) -> Config:
    if not allow_import:
        _refuse_imports(schema, layer)
    try:
        return resolve(schema, [layer], rules=MODEL_RULES, is_complete=False)
    except UserError as error:
        training_only = {item.name for item in dataclasses.fields(TrainConfig)}
        names = set(options_of(schema)) - training_only
        model = Layer({key: value for key, value in layer.values.items() if key in names}, layer.where)
        config = resolve(schema, [model], rules=MODEL_RULES, is_complete=False)
        logger.warning("Ignored training options that are not needed to use the model: %s", error)
        return config


def check_imports(schema: type[Config], path: str | Path) -> None:
    """UserError for a configuration file that names a class by `package.module:Class`."""
    _refuse_imports(schema, read_layer(Path(path), MODEL_RULES))


def _refuse_imports(schema: type[Any], layer: Layer) -> None:
    mistakes = Mistakes()
    for name, option in options_of(schema).items():
        value = layer.values.get(name)
        if option.extra.registry is not None and isinstance(value, str) and is_import(value):
            where = layer.where((name,))
            mistakes.add(
                where,
                f"{name} names the class '{value}', and loading the model would run its code. If you trust it, use "
                f"--allow_import true",
            )
    mistakes.check()


def _translate(document: Document) -> Document:
    return translate_lightning(today(translate_espnet1(document)))


RULES = Rules(translate=_translate, add_layers=add_deepspeed, lacking=LACKING)
MODEL_RULES = Rules(translate=lambda document: translate_lightning(today(document)), lacking=LACKING)
