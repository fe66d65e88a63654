"""Read Kaldi's option files (`conf/fbank.conf`: one `--name=value` per line) into typed options."""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from tympan.errors import UserError
from tympan.files import read_text

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Options = TypeVar("Options")

_TRUE, _FALSE = ("true", "t", "1", ""), ("false", "f", "0")


def read_conf(path: str | os.PathLike[str], kind: type[Options]) -> Options:
    """Options from a conf file; names may be spelled with '-' or '_'. All mistakes are reported together."""
    file = Path(path)
    lines = read_text(file, kind="conf file", encoding="utf-8-sig").splitlines()
    values: dict[str, tuple[str, str]] = {}
    mistakes = []
    for number, line in enumerate(lines, 1):
        content = line.partition("#")[0].strip()
        if not content:
            continue
        if not content.startswith("--"):
            mistakes.append(f"{file}:{number}: expected '--name=value', found '{content}'")
            continue
        name, _, value = content[2:].partition("=")
        values[name.strip().replace("-", "_")] = (value.strip(), f"{file}:{number}")
    return _build(kind, values, mistakes)


def options_from(kind: type[Options], values: Mapping[str, object], *, place: str) -> Options:
    """Options from a mapping, such as the `fbank` section of features.yaml."""
    return _build(kind, {name.replace("-", "_"): (_spelled(value), place) for name, value in values.items()}, [])


def _build(kind: type[Options], values: Mapping[str, tuple[str, str]], mistakes: list[str]) -> Options:
    types = typing.get_type_hints(kind)
    names = [entry.name for entry in dataclasses.fields(cast("type[DataclassInstance]", kind))]
    chosen: dict[str, object] = {}
    for name, (value, place) in values.items():
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
            hint = f" Did you mean '--{_dashed(near[0])}'?" if near else f" Known: {', '.join(map(_dashed, names))}."
            mistakes.append(f"{place}: unknown option '--{_dashed(name)}'.{hint}")
            continue
        try:
            chosen[name] = _cast(value, types[name])
        except ValueError:
            wanted = {bool: "true or false", int: "an integer", float: "a number"}.get(types[name], "another value")
            mistakes.append(f"{place}: '--{_dashed(name)}' is '{value}', expected {wanted}")
    if mistakes:
        raise UserError("\n".join(mistakes))
    return kind(**chosen)


def _cast(value: str, kind: type) -> object:
    if kind is bool:
        if value.lower() in _TRUE:
            return True
        if value.lower() in _FALSE:
            return False
        raise ValueError(value)
    if kind in (int, float):
        if "_" in value:  # Python reads 5_12 as 512
            raise ValueError(value)
        number = kind(value)
        if not math.isfinite(number):
            raise ValueError(value)
        return number
    return value


def _spelled(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _dashed(name: str) -> str:
    return name.replace("_", "-")
