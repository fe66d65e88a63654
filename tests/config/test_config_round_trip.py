"""A printed config, fed back, prints itself byte for byte: for any values."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

from config_doubles import Toy
from hypothesis import given, settings
from hypothesis import strategies as st

from tympan.config import dump_config, parse_args

text = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=12)
word = text.filter(lambda item: item.lower() not in ("none", "null", "nil", "~"))
part = word.filter(lambda item: item == item.strip())
number = st.floats(allow_nan=False)
leaf = st.none() | st.booleans() | st.integers() | number | text
tree = st.recursive(
    leaf, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3), max_leaves=6
)
toys = st.builds(
    Toy,
    text=text,
    note=st.none() | word,
    number=st.integers(),
    rate=number,
    maybe=st.none() | number,
    flag=st.booleans(),
    mode=st.sampled_from(["fast", "slow"]),
    sizes=st.lists(st.integers(), max_size=4),
    names=st.lists(text, max_size=4),
    tokens=st.none() | word | st.lists(text, max_size=4),
    pair=st.tuples(part, part),
    triples=st.lists(st.tuples(part, part, part), max_size=3),
    thing=st.just("small"),
    thing_conf=st.builds(
        lambda width, rate, kind: {"width": width, "rate": rate, "kind": kind},
        st.integers(),
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
    "number": st.integers(),
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
