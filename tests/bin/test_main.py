"""The `tympan` command: the list of commands, the two ways to run one, and the exit codes of mistakes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tympan
from tympan.bin import main as main_module
from tympan.bin.main import INSTEAD, cli, commands, run
from tympan.errors import UserError


def start(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *argv], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"]])
def test_without_arguments_every_command_is_listed(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli(argv) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, purpose in commands().items():
        assert purpose, name
        assert any(line.split() == [name, *purpose.split()] for line in lines), name


def test_commands_of_espnet2_name_what_to_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert not INSTEAD.keys() & commands().keys()
    for name, text in INSTEAD.items():
        assert cli([name, "--config", "train.yaml"]) == 2
        assert text in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli(["--version"]) == 0
    assert capsys.readouterr().out == f"tympan {tympan.__version__}\n"


def test_completion_of_commands_and_options(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    script = (
        f'PATH={Path(sys.executable).parent}:$PATH; eval "$(tympan --completion bash)"\n'
        "COMP_WORDS=(tympan conv); COMP_CWORD=1; _tympan; echo ${COMPREPLY[@]}\n"
        "COMP_WORDS=(tympan convert_config --pr); COMP_CWORD=2; _tympan; echo ${COMPREPLY[@]}\n"
    )
    done = subprocess.run([bash, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["convert_config", "--print_config"]


def test_completion_of_another_shell(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli(["--completion", "fish"]) == 2
    assert capsys.readouterr().err == "tympan: error: --completion must be bash or zsh\n"


def test_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli(["convert-confg"]) == 2
    assert (
        capsys.readouterr().err
        == "tympan: error: there is no command 'convert-confg'. Did you mean 'convert_config'?\n"
    )


def test_both_ways_are_the_same() -> None:
    one = start("-m", "tympan", "convert_config", "--help")
    other = start("-m", "tympan.bin.convert_config", "--help")
    assert one.returncode == other.returncode == 0
    assert one.stdout == other.stdout
    assert "usage: tympan convert_config OLD [NEW] [options]" in one.stdout
    failed = start("-m", "tympan.bin.convert_config", "no.yaml")
    assert failed.returncode == 2
    assert failed.stderr == "tympan: error: no.yaml: no such file\n"


def test_help_of_the_tool_imports_neither_torch_nor_numpy() -> None:
    heavy = "print(sorted({'torch', 'numpy', 'pydantic'} & set(sys.modules)))"
    code = f"import sys; from tympan.bin.main import cli; cli(['--help']); {heavy}"
    assert start("-c", code).stdout.splitlines()[-1] == "[]"


def test_endings(capsys: pytest.CaptureFixture[str]) -> None:
    def mistaken(argv: object) -> int:
        raise UserError("this is wrong")

    def interrupted(argv: object) -> int:
        raise KeyboardInterrupt

    assert run(mistaken) == 2
    assert run(interrupted) == 130
    assert capsys.readouterr().err == "tympan: error: this is wrong\ntympan: interrupted\n"
    with pytest.raises(ZeroDivisionError):
        run(lambda argv: 1 // 0)


@pytest.mark.parametrize("name", sorted(commands()))
def test_every_command_has_help_and_can_be_run_as_a_module(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    source = Path(main_module.__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
    assert 'if __name__ == "__main__":' in source
    with pytest.raises(SystemExit) as caught:
        cli([name, "--help"])
    assert caught.value.code == 0
    assert f"usage: tympan {name}" in capsys.readouterr().out


def test_every_command_is_listed_in_one_group(capsys: pytest.CaptureFixture[str]) -> None:
    grouped = [name for names in main_module.GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(main_module.commands())
    assert cli([]) == 0
    printed = capsys.readouterr().out
    assert printed.index("start here:") < printed.index("  demo ") < printed.index("train:")
