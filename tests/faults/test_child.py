"""Child Python processes import nothing from their working directory, and only one module starts them."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from train_corpus import environment

from tympan.runtime.child import child_environment, code_command, module_arguments, own_module_arguments

SOURCE = Path(__file__).resolve().parents[2] / "src" / "tympan"
NAMES = ("yaml", "torch", "numpy", "pickle", "socket", "tempfile", "runpy", "random", "json", "pydantic", "tqdm")
"""Modules of the standard library and of packages that some child imports early."""
NOT_INSTALLED = ("triton", "torch_npu", "pandas")
"""Packages that others import where they are installed: a directory that is last on the path would be asked too."""
NOT_A_CHILD = {
    "runtime/child.py",
    # The one pool of processes, whose workers watch their parent
    "runtime/executor.py",
    # The path of the `tympan` program, for a printed command
    "recipe/run.py",
    "recipe/new.py",
}


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A directory full of modules that leave a file when they are imported."""
    directory = tmp_path / "trap"
    directory.mkdir()
    set_traps(directory, NAMES)
    return directory


def set_traps(directory: Path, names: Sequence[str]) -> None:
    for name in names:
        text = (
            f"open({str(directory.parent / 'sprung')!r}, 'a').write('{name} ')\nraise SystemExit('trapped: {name}')\n"
        )
        (directory / f"{name}.py").write_text(text, encoding="utf-8")


def run_in(directory: Path, command: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command, cwd=directory, env={**environment(), **variables}, capture_output=True, text=True, check=False
    )
    sprung = directory.parent / "sprung"
    assert not sprung.exists(), f"imported from the working directory: {sprung.read_text()}"
    return done


@pytest.mark.parametrize("safe_path", [True, False])
def test_a_module_without_the_working_directory(trap: Path, safe_path: bool) -> None:
    """With -P, and without it as in Python 3.10."""
    if safe_path and sys.version_info < (3, 11):
        pytest.skip("Python 3.10 has no -P")
    command = [sys.executable, *module_arguments("tympan.bin.tokenize_text", ["--help"], safe_path=safe_path)]
    done = run_in(trap, command)
    assert done.returncode == 0, done.stderr
    assert "usage: tympan tokenize_text" in done.stdout


@pytest.mark.parametrize("safe_path", [True, False])
def test_code_without_the_working_directory(trap: Path, safe_path: bool) -> None:
    if safe_path and sys.version_info < (3, 11):
        pytest.skip("Python 3.10 has no -P")
    done = run_in(trap, code_command("import yaml; print(yaml.__file__)", safe_path=safe_path))
    assert done.returncode == 0, done.stderr
    assert "site-packages" in done.stdout


def test_a_module_of_the_users_comes_last(trap: Path) -> None:
    (trap / "own.py").write_text("import sys, yaml\nprint(__name__, yaml.safe_load('[1]'), sys.argv[1:])\n")
    done = run_in(trap, [sys.executable, *own_module_arguments("own"), "a", "-b"])
    assert done.stdout.strip() == "__main__ [1] ['a', '-b']", done.stderr


def test_the_workers_of_the_executor(trap: Path) -> None:
    code = (
        "from tympan.runtime.executor import map_jobs\n"
        "if __name__ == '__main__':\n"
        "    print(list(map_jobs(abs, [-1, 2, -3], nj=2, description='')))\n"
    )
    script = trap.parent / "script.py"
    script.write_text(code)
    done = run_in(trap, [sys.executable, str(script)])
    assert done.stdout.strip() == "[1, 2, 3]", done.stderr


def test_two_training_processes_beside_a_yaml_py(beeps: Path, trap: Path) -> None:
    set_traps(trap, NOT_INSTALLED)
    tympan = ["-c", "import sys; del sys.path[0]; from tympan.bin.main import cli; sys.exit(cli())"]
    arguments = ["asr_train", "--config", str(beeps), "--output_dir", "exp", "--nproc", "2", "--max_epoch", "1"]
    done = run_in(trap, [sys.executable, *tympan, *arguments, "--train_dtype", "bfloat16"])
    assert done.returncode == 0, done.stderr
    assert (trap / "exp" / "1epoch.pth").is_file()


def test_a_child_does_not_hand_its_parent_on() -> None:
    """A process started by a child has another parent."""
    code = (
        "from tympan.runtime.child import end_with_parent\nimport os\nend_with_parent()\n"
        "print(os.environ.get('TYMPAN_PARENT'))"
    )
    done = subprocess.run(code_command(code), env=child_environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "None")


def test_a_child_whose_parent_is_gone_ends_at_once() -> None:
    code = "from tympan.runtime.child import end_with_parent\nend_with_parent()\nprint('still here')"
    variables = {**os.environ, "TYMPAN_PARENT": "1:9"}
    done = subprocess.run(code_command(code), env=variables, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (-9, "")


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_every_python_child_is_started_safely(path: Path) -> None:
    name = str(path.relative_to(SOURCE))
    found = [] if name in NOT_A_CHILD else list(unsafe_starts(path.read_text(encoding="utf-8")))
    assert found == []


def test_the_walk_finds_what_it_must() -> None:
    assert list(unsafe_starts("import sys\nrun([sys.executable, '-m', 'x'])")) == ["2: sys.executable"]
    assert list(unsafe_starts("from sys import executable")) == ["1: from sys import executable"]
    assert list(unsafe_starts("Popen(['python3', 'x'])")) == ["1: ['python3', 'x']"]
    assert list(unsafe_starts("m.get_context('spawn')")) == ["1: m.get_context('spawn')"]
    assert list(unsafe_starts("p = futures.ProcessPoolExecutor(2)")) == ["1: futures.ProcessPoolExecutor(2)"]
    assert list(unsafe_starts("f(sys.version)")) == []


def unsafe_starts(text: str) -> list[str]:
    """Names of this Python's program, spawned processes of multiprocessing, and pools of them."""
    found = []
    for node in ast.walk(ast.parse(text)):
        is_program = isinstance(node, ast.Attribute) and ast.unparse(node) in ("sys.executable", "sys._base_executable")
        is_import = isinstance(node, ast.ImportFrom) and node.module == "sys"
        is_name = isinstance(node, ast.List) and node.elts and ast.unparse(node.elts[0]) in ("'python'", "'python3'")
        is_context = (
            isinstance(node, ast.Call)
            and ast.unparse(node.func).rpartition(".")[2] in ("get_context", "set_start_method")
            and "spawn" in ast.unparse(node)
        )
        is_pool = isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in (
            "ProcessPoolExecutor", "Pool", "Process",
        )  # fmt: skip
        if is_program or is_import or is_name or is_context or is_pool:
            assert isinstance(node, ast.expr | ast.stmt)
            found.append(f"{node.lineno}: {ast.unparse(node)}")
    return found


def write_run(directory: Path, config: str, **changes: object) -> None:
    """The files that `reproduce` reads, as in a run from somebody else."""
    manifest = {
        "task": "asr", "task_class": "tympan.tasks.asr:AsrTask", "directory": str(directory), "data": {},
        "versions": {}, "processes": 1, "device": "cpu", "threads": 1, "weights_sha256": {}, "epochs": {}, **changes,
    }  # fmt: skip
    (directory / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    (directory / "config.yaml").write_text(config, encoding="utf-8")
    (directory / "evil.py").write_text(f"open({str(directory.parent / 'sprung')!r}, 'w').write('evil')\n")


REPRODUCE = code_command("import sys; from tympan.bin.main import cli; sys.exit(cli(['reproduce', *sys.argv[1:]]))")


def test_reproduce_runs_no_code_from_the_folder(trap: Path) -> None:
    write_run(trap, "max_epoch: 1\n")
    done = run_in(trap, [*REPRODUCE, "."])
    assert done.returncode == 2
    assert "--decoder: is null" in done.stderr  # training has started, and reports a mistake


def test_reproduce_asks_before_it_imports_what_the_folder_names(trap: Path) -> None:
    write_run(trap, "encoder: evil:Encoder\n")
    done = run_in(trap, [*REPRODUCE, "."])
    assert "encoder names the class 'evil:Encoder'" in done.stderr
    for changes in ({"task_class": "evil:Task"}, {"kind": "evil:Task"}):
        write_run(trap, "max_epoch: 1\n", **changes)
        if "kind" in changes:
            manifest = json.loads((trap / "manifest.json").read_text())
            del manifest["task"]
            (trap / "manifest.json").write_text(json.dumps(manifest))
        done = run_in(trap, [*REPRODUCE, "."])
        assert done.returncode == 2
        assert "--allow_import true" in done.stderr


def test_a_class_of_the_users_is_found_in_the_working_directory(beeps: Path, trap: Path) -> None:
    """In this process, where the directory is not on the path, and in the workers. Packages keep their names."""
    (trap / "own_encoder.py").write_text(
        "from tympan.models.encoder.conformer import ConformerEncoder\n\n\n"
        "class Own(ConformerEncoder):\n"
        "    def __init__(self, input_size: int, *, output_size: int = 16) -> None:\n"
        "        super().__init__(input_size=input_size, output_size=output_size, attention_heads=2, num_blocks=1)\n"
    )
    config = trap.parent / "train.yaml"
    text = beeps.read_text(encoding="utf-8").replace("encoder: conformer", "encoder: own_encoder:Own")
    given = yaml.safe_load(text)
    config.write_text(yaml.safe_dump({**given, "encoder_conf": {"output_size": 8}}))
    start = code_command("import sys; from tympan.bin.main import cli; sys.exit(cli())")
    options = ["--config", str(config), "--output_dir", "exp", "--max_epoch", "1", "--nproc", "2"]
    done = run_in(trap, [*start, "asr_train", *options])
    assert done.returncode == 0, done.stderr
