"""All mistakes are reported together, each with a helpful message."""

from __future__ import annotations

from pathlib import Path

import pytest
from config_doubles import Toy

from tympan.config import parse_args
from tympan.config.resolve import Conflict, Rules
from tympan.errors import UserError


def mistakes(*argv: str) -> str:
    with pytest.raises(UserError) as caught:
        parse_args(Toy, list(argv), prog="toy")
    return str(caught.value)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--numbr", "3"], "unknown option '--numbr'. Did you mean '--number'?"),
        (["--xyzzy", "3"], "unknown option '--xyzzy'. '--help' lists the options"),
        (["--free-conf", "a=1"], "unknown option '--free-conf': option names are written with '_'. Use '--free_conf'"),
        (
            ["--print-config"],
            "unknown option '--print-config': option names are written with '_'. Use '--print_config'",
        ),
        (["stray"], "'stray' is not expected here. Options start with '--'"),
        (["--number", "x"], "--number: expects int, found 'x' (text)"),
        (["--number"], "--number: needs a value"),
        (["--mode", "fats"], "--mode: expects fast | slow, found 'fats' (text). Did you mean 'fast'?"),
        (["--mode", "warp"], "--mode: 'warp' of ESPnet2 is not supported; use 'fast'"),
        (["--later", "8"], "--later: this option of ESPnet2 is not supported; use --number"),
        (["--pair", "a"], "--pair: expects text,text, found 'a' (text)"),
        (
            ["--thing", "smal"],
            "--thing: there is no thing 'smal'. Did you mean 'small'? "
            "Known: small, nested, needy; or package.module:Class",
        ),
        (["--thing", "huge"], "--thing: ESPnet2's thing 'huge' is not supported; use 'small'"),
        (
            ["--thing_conf", "widht=3"],
            "--thing_conf widht: the thing 'small' has no key 'widht'. Did you mean 'width'?",
        ),
        (
            ["--thing_conf", "zzz=3"],
            "--thing_conf zzz: the thing 'small' has no key 'zzz'. Its keys: width, rate, kind",
        ),
        (
            ["--thing_conf", "input_size=3"],
            "--thing_conf input_size: the thing 'small' has no key 'input_size'. Its keys: width, rate, kind",
        ),
        (["--thing_conf", "width=x"], "--thing_conf width: expects int, found 'x' (text)"),
        (["--thing_conf", "kind=c"], "--thing_conf kind: expects a | b, found 'c' (text)"),
        (
            ["--thing", "nested", "--thing_conf", "att_conf.dmi=3"],
            "--thing_conf att_conf.dmi: the thing 'nested' has no key 'att_conf.dmi'. Did you mean 'dim'?",
        ),
        (
            ["--thing", "nested", "--thing_conf", "att_conf.deep.x=y"],
            "--thing_conf att_conf.deep.x: expects int, found 'y' (text)",
        ),
        (
            ["--thing", "nested", "--thing_conf", "att_conf=3"],
            "--thing_conf att_conf: expects mapping, found 3 (a whole number)",
        ),
        (["--thing_conf", "word"], "--thing_conf: expects key=value or \"{key: value}\", found 'word'"),
        (
            ["--thing", "none", "--thing_conf", "width=3"],
            "--thing_conf: has keys, but --thing is null: remove the keys, or choose a value for --thing",
        ),
        (["--thing", "needy"], "--thing_conf: the thing 'needy' needs the key 'stats_file'"),
        (
            ["--thing", "no_such_package.x:Y"],
            "--thing_conf: 'no_such_package.x:Y': there is no module 'no_such_package' on the Python path",
        ),
        (
            ["--thing", "config_doubles:Nil"],
            "--thing_conf: 'config_doubles:Nil': the module 'config_doubles' has no class 'Nil'",
        ),
        (
            ["--single_conf", "redcue=false"],
            "--single_conf redcue: the single has no key 'redcue'. Did you mean 'reduce'?",
        ),
        (
            ["--free_conf", "{a: [1"],
            "--free_conf: text:1:7: not valid YAML: while parsing a flow sequence, expected ',' or ']', "
            "but got '<stream end>'",
        ),
        (["--config"], "--config: needs a value: a YAML file"),
        (["--config", "/no/such.yaml"], "/no/such.yaml: no such file"),
    ],
)
def test_message(argv: list[str], message: str) -> None:
    assert mistakes(*argv) == message


def test_in_a_file_each_has_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(
        "number: x\nbatch-size: 3\nthing: small\nthing_conf:\n  rate: 1\n  widht: 3\n  width: y\n", encoding="utf-8"
    )
    assert mistakes("--config", str(path), "--mode", "x").splitlines() == [
        "5 mistakes:",
        f"  {path}:2: unknown option 'batch-size'.",
        f"  {path}:1: number: expects int, found 'x' (text)",
        "  --mode: expects fast | slow, found 'x' (text)",
        f"  {path}:7: thing_conf.width: expects int, found 'y' (text)",
        f"  {path}:6: thing_conf.widht: the thing 'small' has no key 'widht'. Did you mean 'width'?",
    ]


def test_broken_file_and_other_mistakes_are_told_together(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("a: [\n", encoding="utf-8")
    found = mistakes("--config", str(path), "--number", "x")
    assert found.startswith("2 mistakes:\n  ")
    assert f"{path}:2:1: not valid YAML" in found
    assert "--number: expects int" in found


def test_what_follows_from_a_mistake_is_no_mistake(tmp_path: Path) -> None:
    assert len(mistakes("--thing", "nestd", "--thing_conf", "att_conf.dim=3").splitlines()) == 1
    with pytest.raises(UserError) as caught:
        parse_args(
            Toy,
            ["--config", str(tmp_path / "missing.yaml")],
            prog="toy",
            rules=Rules(check=lambda values: [Conflict(("number",), "does not go with the text")]),
        )
    assert str(caught.value).endswith("missing.yaml: no such file")
    assert "does not go" not in str(caught.value)


@pytest.mark.parametrize("text", ["- a\n- b\n", "just text\n"])
def test_file_must_be_a_mapping(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text, encoding="utf-8")
    assert "must be a mapping of options to values" in mistakes("--config", str(path))
    path.write_text("tuning/b.yaml\n")
    assert (
        f"found str. Its content is the path of another file; use that file: {path.parent}/tuning/b.yaml"
        in mistakes("--config", str(path))
    )


def test_nothing_is_evaluated(tmp_path: Path) -> None:
    target = tmp_path / "touched"
    code = f"__import__('pathlib').Path({str(target)!r}).touch()"
    options = parse_args(Toy, ["--note", code, "--free_conf", f"a={code}"], prog="toy")
    assert options.note == code
    assert not target.exists()


def test_keys_of_a_class_that_is_null_are_ignored_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("thing: null\nthing_conf: {width: 3}\n", encoding="utf-8")
    assert parse_args(Toy, ["--config", str(file)], prog="toy").thing_conf == {}
    assert f"{file}:2: thing_conf is not used, because --thing is null" in capsys.readouterr().err
