"""Short flags, and lists of numbers before a positional argument."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tympan.config import argument, option, parse_args
from tympan.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Estimate:
    text: str = argument("-", help="text")
    order: int = option(help="order", short="-o")
    prune: list[int] = option([], help="thresholds")
    fallback: list[float] | None = option(None, help="discounts")


def parse(*argv: str) -> Estimate:
    return parse_args(Estimate, list(argv), prog="estimate")


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["-o", "4"], Estimate(order=4)),
        (["--prune", "0", "0", "1", "train.txt", "-o", "3"], Estimate(order=3, prune=[0, 0, 1], text="train.txt")),
        (["-o", "3", "--fallback", "train.txt"], Estimate(order=3, fallback=[], text="train.txt")),
        (["-o", "3", "--fallback", "0.5", "1", "1.5", "-"], Estimate(order=3, fallback=[0.5, 1.0, 1.5])),
        (["-o", "3", "--fallback", "null"], Estimate(order=3)),
    ],
)
def test_numbers_end_where_a_word_is_none(argv: list[str], expected: Estimate) -> None:
    assert parse(*argv) == expected


def test_a_short_flag_is_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--help")
    assert "-o int" in capsys.readouterr().out


def test_a_number_that_is_none_is_named() -> None:
    with pytest.raises(UserError, match="'x' is not expected"):
        parse("-o", "3", "--prune", "0", "train.txt", "x")


def test_an_argument_that_is_written_as_an_option() -> None:
    """It suggested the same words again."""
    with pytest.raises(UserError, match="unknown option '--text': TEXT is an argument, write its value without"):
        parse("-o", "3", "--text", "a")
    with pytest.raises(UserError, match=r"unknown option '--txt'\. '--help' lists"):
        parse("-o", "3", "--txt", "a")
