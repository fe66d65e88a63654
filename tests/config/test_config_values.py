"""What a user may write for a value, on the command line and in a file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import pytest
from config_doubles import Toy

from tympan.config import parse_args
from tympan.config.cast import CastError, cast
from tympan.config.yaml_text import dump_yaml, parse_yaml
from tympan.errors import UserError


def parse(*argv: str) -> Toy:
    return parse_args(Toy, list(argv), prog="toy")


@pytest.mark.parametrize(
    ("argv", "name", "expected"),
    [
        (["--number", "4"], "number", 4),
        (["--number=4"], "number", 4),
        (["--rate", "1e-3"], "rate", 0.001),
        (["--rate", "-1e-3"], "rate", -0.001),
        (["--rate", "3"], "rate", 3.0),
        (["--rate", "inf"], "rate", math.inf),
        (["--maybe", "none"], "maybe", None),
        (["--maybe", "null"], "maybe", None),
        (["--maybe", "2"], "maybe", 2.0),
        (["--note", "None"], "note", None),
        (["--note", "13_15"], "note", "13_15"),
        (["--note", "1e3"], "note", "1e3"),
        (["--note", "a: b"], "note", "a: b"),
        (["--text", "null"], "text", "null"),
        (["--flag", "true"], "flag", True),
        (["--flag"], "flag", True),
        (["--flag", "no", "--number", "4"], "flag", False),
        (["--mode", "SLOW"], "mode", "slow"),
        (["--mode", "quick"], "mode", "fast"),
        (["--sizes", "1", "2"], "sizes", [1, 2]),
        (["--sizes", "1", "--sizes", "2"], "sizes", [1, 2]),
        (["--sizes", "[5, 6]"], "sizes", [5, 6]),
        (["--sizes"], "sizes", []),
        (["--names", "a", "b c"], "names", ["a", "b c"]),
        (["--tokens", "tokens.txt"], "tokens", "tokens.txt"),
        (["--tokens", "[a, b]"], "tokens", ["a", "b"]),
        (["--tokens", "none"], "tokens", None),
        (["--pair", "train", "acc"], "pair", ("train", "acc")),
        (["--pair", "train,acc"], "pair", ("train", "acc")),
        (["--triples", "a.scp,speech,sound"], "triples", [("a.scp", "speech", "sound")]),
        (["--triples", "d/a,b.scp,speech,sound"], "triples", [("d/a,b.scp", "speech", "sound")]),
        (["--triples", "a,b,c", "--triples", "d,e,f"], "triples", [("a", "b", "c"), ("d", "e", "f")]),
        (["--triples", "[a, b, c]"], "triples", [("a", "b", "c")]),
        (["--triples", "[[a, b, c], [d, e, f]]"], "triples", [("a", "b", "c"), ("d", "e", "f")]),
        (
            ["--free_conf", "a.b=1e-3", "--free_conf", "{a: {c: [x, 2]}}"],
            "free_conf",
            {"a": {"b": 0.001, "c": ["x", 2]}},
        ),
        (["--free_conf", "a=none", "b=True"], "free_conf", {"a": None, "b": True}),
        (["--free_conf", "url=http://x?a=b"], "free_conf", {"url": "http://x?a=b"}),
        (["--thing", "SMALL"], "thing", "small"),
        (["--thing", "none"], "thing_conf", {}),
        (["--thing_conf", "rate=1"], "thing_conf", {"width": 4, "rate": 1.0, "kind": "a"}),
    ],
)
def test_command_line(argv: list[str], name: str, expected: Any) -> None:
    found = getattr(parse(*argv), name)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("rate: 1e-3", "rate", 0.001),
        ("note: 13_15", "note", "13_15"),
        ("note: 1e3", "note", "1e3"),
        ("note: 1.50", "note", "1.50"),
        ("note: 2024-01-01", "note", "2024-01-01"),
        ("note: none", "note", None),
        ("note: 12:30", "note", "12:30"),
        ("sizes: 4", "sizes", [4]),
        ("sizes: [1e2]", "sizes", [100]),
        ("tokens: ['no', 1e3, 7, 0x1]", "tokens", ["no", "1e3", "7", "0x1"]),
        ("triples: ['a,b,c', [d, e, f]]", "triples", [("a", "b", "c"), ("d", "e", "f")]),
        ("thing: none", "thing", None),
        ("free_conf: {a: {b: 1e-3, c: '1e-3'}}", "free_conf", {"a": {"b": 0.001, "c": "1e-3"}}),
        ("base: &b {x: 1}\nfree_conf: {<<: *b, y: 2}\nnumber: 1", "free_conf", {"x": 1, "y": 2}),
    ],
)
def test_file(tmp_path: Path, text: str, name: str, expected: Any) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text.replace("base: &b {x: 1}\n", ""), encoding="utf-8")
    if "*b" in text:
        path.write_text("free_conf:\n  <<: &b {x: 1}\n  y: 2\nnumber: 1\n", encoding="utf-8")
    assert getattr(parse("--config", str(path)), name) == expected


@pytest.mark.parametrize(
    ("value", "wanted", "message"),
    [
        ("abc", int, "expects int, found 'abc' (text)"),
        (True, int, "expects int, found true"),
        (1, bool, "expects true | false, found 1 (a whole number)"),
        (4.5, int, "expects int, found 4.5 (a number)"),
        (None, int, "expects int, found null"),
        (True, str, "expects text, found true"),
        ([1, "x"], list[int], "expects int, found 'x' (text)"),
        ({"a": 1}, list[int], "expects list of int, found {'a': 1} (a mapping)"),
        ("a,b", tuple[str, str, str], "expects text,text,text, found 'a,b' (text)"),
        ("c", Literal["a", "b"], "expects a | b, found 'c' (text)"),
        ("x", float | None, "expects float | null, found 'x' (text)"),
    ],
)
def test_rejected(value: Any, wanted: Any, message: str) -> None:
    with pytest.raises(CastError) as caught:
        cast(value, wanted)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a: 1\nb: [1\n", ":3:1: "),
        ("a: 1\n b: 2\n", ":2:3: "),
        ("a: 1\na: 2\n", ":2:1: not valid YAML: duplicate key 'a'"),
        ("a: !!python/object/apply:os.system ['true']\n", ":1:4: "),
        ("a: !!python/name:os.system\n", ":1:4: "),
        ("a: !!set {x, y}\n", ":1:4: "),
        ("\tb: 1\n", ":1:1: "),
    ],
)
def test_bad_yaml_has_line_and_column(text: str, place: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_yaml(text, "f.yaml")
    assert str(caught.value).startswith(f"f.yaml{place}")


def test_aliases_can_not_multiply_without_end() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    with pytest.raises(UserError, match="more than 500000 values"):
        parse_yaml("\n".join(lines), "bomb.yaml")
    with pytest.raises(UserError, match="nested too deeply"):
        parse_yaml("a: &a [*a]", "loop.yaml")


def test_a_large_vocabulary_is_read() -> None:
    tokens = [f"token{n}" for n in range(20_000)]
    assert parse_yaml(dump_yaml({"token_list": tokens}), "x").value == {"token_list": tokens}


def test_dumped_text_that_looks_like_a_number_stays_text() -> None:
    value = {
        "a": "1e-3",
        "b": 1e-06,
        "c": "13_15",
        "d": "null",
        "e": "on",
        "f": "1",
        "g": [[1], []],
        "中": "文",
        "h": "007",
    }
    assert parse_yaml(dump_yaml(value), "x").value == value
    assert "中: 文" in dump_yaml(value)
    assert dump_yaml({"eps": 1e-06}) == "eps: 1.0e-06\n"
