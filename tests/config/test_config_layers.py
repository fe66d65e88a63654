"""Defaults, then files from left to right, then the command line; `*_conf` key by key."""

from __future__ import annotations

from pathlib import Path

import pytest
from config_doubles import THINGS, Small, Toy

from tympan.config import dump_config, parse_args
from tympan.errors import UserError


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_file_equals_flags(tmp_path: Path) -> None:
    config = write(tmp_path / "a.yaml", "number: 9\nthing_conf: {width: 8}\nsizes: [1, 2]\npair: [train, acc]\n")
    flags = ["--number", "9", "--thing_conf", "width=8", "--sizes", "1", "2", "--pair", "train", "acc"]
    assert parse_args(Toy, ["--config", config], prog="t") == parse_args(Toy, flags, prog="t")


def test_later_wins_and_the_command_line_wins_over_all(tmp_path: Path) -> None:
    first = write(tmp_path / "a.yaml", "number: 1\nrate: 0.1\ntext: a\nthing_conf: {width: 1, rate: 0.1}\n")
    second = write(tmp_path / "b.yaml", "rate: 0.2\ntext: b\nthing_conf: {rate: 0.2}\n")
    found = parse_args(Toy, ["--text", "c", "--config", first, "--config", second, "--thing_conf", "kind=b"], prog="t")
    assert (found.number, found.rate, found.text) == (1, 0.2, "c")
    assert found.thing_conf == {"width": 1, "rate": 0.2, "kind": "b"}


def test_conf_merges_at_any_depth(tmp_path: Path) -> None:
    config = write(tmp_path / "a.yaml", "thing: nested\nthing_conf: {att_conf: {deep: {y: 2}, dim: 7}}\n")
    found = parse_args(Toy, ["--config", config, "--thing_conf", "att_conf.deep.x=3", "att_conf.dim=4"], prog="t")
    assert found.thing_conf["att_conf"] == {"dim": 4, "deep": {"x": 3, "y": 2}}


def test_null_takes_back_what_a_file_gave(tmp_path: Path) -> None:
    config = write(tmp_path / "a.yaml", "thing: nested\nthing_conf: {name: x}\n")
    found = parse_args(Toy, ["--config", config, "--thing", "small", "--thing_conf", "null", "width=2"], prog="t")
    assert found.thing_conf["width"] == 2


def test_print_config_may_lack_what_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_args(Toy, ["--thing", "needy", "--print_config"], prog="t")
    assert caught.value.code == 0
    assert "thing_conf:\n    eps: 1.0e-20\n" in capsys.readouterr().out


def test_help_groups_options_and_names_choices_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_args(Toy, ["--help"], prog="toy", description="What it does.")
    text = capsys.readouterr().out
    assert caught.value.code == 0
    words = " ".join(text.split())
    assert text.startswith("usage: toy [options]\n\nWhat it does.\n")
    for part in (
        " options: ",
        " classes: ",
        "--mode fast|slow",
        "[3]",
        "(small, nested, needy; or package.module:Class)",
    ):
        assert part in words
    assert "ESPnet2 options that Tympan does not have yet:" in text


def test_user_class_from_the_command_line() -> None:
    found = parse_args(Toy, ["--thing", "config_doubles:Small", "--thing_conf", "width=9"], prog="t")
    assert found.thing_conf == {"width": 9, "rate": 0.1, "kind": "a"}
    built = THINGS.build(found.thing or "", found.thing_conf, input_size=5)
    assert isinstance(built, Small)
    assert built.values == (5, 9, 0.1, "a")


def test_a_users_class_needs_no_types() -> None:
    found = parse_args(Toy, ["--thing", "config_doubles:Own", "--thing_conf", "layers=[1e-3, x]"], prog="t")
    assert found.thing_conf == {"layers": [0.001, "x"], "rate": 0.5, "count": 3, "note": None}
    built = THINGS.build("config_doubles:Own", found.thing_conf, input_size=1)
    assert built.values == (1, [0.001, "x"], 0.5, 3, print, None)
    assert type(built.values[3]) is int


@pytest.mark.parametrize("name", [":X", "a b:C", "pkg.mod:", "os.system:call()"])
def test_a_colon_alone_does_not_make_a_class(name: str) -> None:
    with pytest.raises(UserError, match="there is no thing"):
        parse_args(Toy, ["--thing", name], prog="t")


def test_build_checks_too() -> None:
    with pytest.raises(UserError, match=r"has no key 'widht'\. Did you mean 'width'"):
        THINGS.build("small", {"widht": 3}, input_size=5)
    with pytest.raises(UserError, match="needs it"):
        THINGS.build("needy", {})


def test_given_config_is_not_changed() -> None:
    found = parse_args(Toy, [], prog="t")
    before = dump_config(found)
    THINGS.build(found.thing or "", found.thing_conf, input_size=5)
    assert dump_config(found) == before
