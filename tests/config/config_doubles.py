"""Small test classes that a configuration can choose, and a command that uses them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from tympan.config import Registry, option
from tympan.config.option import choice, conf_for, conf_of, not_yet


class Small:
    def __init__(self, input_size: int, width: int = 4, *, rate: float = 0.1, kind: Literal["a", "b"] = "a") -> None:
        self.values = (input_size, width, rate, kind)


class Nested:
    def __init__(
        self,
        input_size: int,
        att_conf: dict[str, Any] = {"dim": 3, "deep": {"x": 1, "y": 0}},  # noqa: B006
        name: str = "n",
    ) -> None:
        self.att_conf = att_conf


class Needy:
    def __init__(self, stats_file: str, eps: float = 1e-20) -> None:
        self.stats_file = stats_file


class Own:
    """As a user may write it: without types, with a default that YAML can't hold, with keys that are required."""

    def __init__(self, input_size, layers, rate=0.5, count=3, activation=print, note=None):  # type: ignore[no-untyped-def]
        self.values = (input_size, layers, rate, count, activation, note)


class Single:
    def __init__(self, vocab_size: int, reduce: bool = True) -> None:
        self.reduce = reduce


THINGS = Registry(
    "thing",
    {name: f"config_doubles:{name.capitalize()}" for name in ("small", "nested", "needy")},
    supplied=["input_size"],
    not_yet={"huge": "use 'small'"},
)
SINGLES = Registry("single", {"single": "config_doubles:Single"}, supplied=["vocab_size"])


@dataclass(frozen=True, kw_only=True)
class Toy:
    """Every kind of option once."""

    text: str = option("t", help="text")
    note: str | None = option(None, help="text or null")
    number: int = option(3, help="a whole number")
    rate: float = option(0.5, help="a number", allows_inf=True)
    maybe: float | None = option(None, help="a number or null")
    flag: bool = option(False, help="a switch")
    mode: Literal["fast", "slow"] = option(
        "fast", help="a choice", not_yet_values={"warp": "use 'fast'"}, aliases={"quick": "fast"}
    )
    sizes: list[int] = option([1], help="numbers")
    names: list[str] = option([], help="texts")
    tokens: str | list[str] | None = option(None, help="a file or a list")
    pair: tuple[str, str] = option(("valid", "loss"), help="two texts")
    triples: list[tuple[str, str, str]] = option([], help="path,name,type")
    thing: str | None = choice(THINGS, "small", help="a class", group="classes")
    thing_conf: dict[str, Any] = conf_of("thing", help="its parameters", group="classes")
    single_conf: dict[str, Any] = conf_for(SINGLES, help="the one class's parameters", group="classes")
    free_conf: dict[str, Any] = option({}, help="anything")
    later: int = not_yet(7, instead="use --number")
