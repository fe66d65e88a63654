"""A printed config that is read again prints the same text, byte for byte, for any values."""

from __future__ import annotations

import dataclasses
import math
import tempfile
import typing
from pathlib import Path
from typing import Any

import pytest
from config_doubles import Toy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tympan.config import dump_config, load_training_config, parse_args
from tympan.config.asr import AsrTrainConfig
from tympan.config.cast import members_of
from tympan.config.lm import LmTrainConfig
from tympan.config.option import options_of
from tympan.config.range import SMALLEST
from tympan.config.resolve import resolve

text = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=12)
word = text.filter(lambda item: item.lower() not in ("none", "null", "nil", "~"))
part = word.filter(lambda item: item == item.strip())
number = st.floats(allow_nan=False, allow_infinity=False).filter(lambda item: item == 0 or abs(item) >= SMALLEST)
whole = st.integers(1 - 2**63, 2**63 - 1)
leaf = st.none() | st.booleans() | st.integers() | number | text
tree = st.recursive(
    leaf, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3), max_leaves=6
)
toys = st.builds(
    Toy,
    text=text,
    note=st.none() | word,
    number=whole,
    rate=number | st.sampled_from([math.inf, -math.inf]),
    maybe=st.none() | number,
    flag=st.booleans(),
    mode=st.sampled_from(["fast", "slow"]),
    sizes=st.lists(whole, max_size=4),
    names=st.lists(text, max_size=4),
    tokens=st.none() | word | st.lists(text, max_size=4),
    pair=st.tuples(part, part),
    triples=st.lists(st.tuples(part, part, part), max_size=3),
    thing=st.just("small"),
    thing_conf=st.builds(
        lambda width, rate, kind: {"width": width, "rate": rate, "kind": kind},
        whole,
        number,
        st.sampled_from(["a", "b"]),
    ),
    single_conf=st.fixed_dictionaries({"reduce": st.booleans()}),
    free_conf=st.dictionaries(text, tree, max_size=4),
)


@settings(max_examples=300, deadline=None)
@given(toys)
def test_print_then_parse_is_the_identity(toy: Toy) -> None:
    printed = dump_config(toy)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "config.yaml")
        path.write_text(printed, encoding="utf-8", newline="")
        again = parse_args(Toy, ["--config", str(path)], prog="t")
    assert again == toy
    assert dump_config(again) == printed


scalars = {
    "number": whole,
    "rate": number,
    "maybe": number,
    "text": text.filter(lambda item: not item.startswith(("[", "{"))),
    "flag": st.booleans(),
}


@settings(max_examples=200, deadline=None)
@given(st.fixed_dictionaries({}, optional=scalars))
def test_flags_equal_the_file(values: dict[str, Any]) -> None:
    flags = [f"--{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in values.items()]
    assert parse_args(Toy, flags, prog="t") == dataclasses.replace(parse_args(Toy, [], prog="t"), **values)


def values_of(wanted: Any) -> st.SearchStrategy[Any]:
    """Any value of an option's type."""
    members = members_of(wanted)
    if len(members) > 1:
        plain = [item for item in members if item is not type(None)]
        return (
            st.one_of(st.none(), *map(values_of, plain))
            if len(plain) < len(members)
            else st.one_of(*map(values_of, plain))
        )
    origin, inner = typing.get_origin(wanted), typing.get_args(wanted)
    if origin is typing.Literal:
        return st.sampled_from(inner)
    if origin is list:
        return st.lists(values_of(inner[0]), max_size=3)
    if origin is tuple:
        return st.tuples(*map(values_of, inner))
    if origin is dict:
        return st.dictionaries(text, tree, max_size=3)
    return {str: part, int: st.integers(), float: number, bool: st.booleans()}[wanted]


def plain_options(schema: type[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Some options of a training command, without those that choose a class."""
    found = {
        name: values_of(option.type)
        for name, option in options_of(schema).items()
        if option.extra.not_yet is None and option.extra.registry is None and option.extra.conf_of is None
    }
    return st.fixed_dictionaries({}, optional=found)


@pytest.mark.parametrize("schema", [AsrTrainConfig, LmTrainConfig])
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_training_configs_too(schema: Any, data: st.DataObject) -> None:
    config = dataclasses.replace(resolve(schema, [], is_complete=False), **data.draw(plain_options(schema)))
    printed = dump_config(config)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "config.yaml")
        path.write_text(printed, encoding="utf-8", newline="")
        again = load_training_config(schema, path)
    assert again == config
    assert dump_config(again) == printed
