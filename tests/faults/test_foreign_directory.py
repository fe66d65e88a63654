"""A working directory from somebody else: the programs and packages that Tympan uses run nothing that it names."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from train_corpus import environment

from tympan.runtime.child import code_command
from tympan.training.manifest import git_state

SOURCE = Path(__file__).resolve().parents[2] / "src" / "tympan"
GIT = shutil.which("git")


def git(directory: Path, *arguments: str) -> None:
    assert GIT is not None
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([GIT, *who, *arguments], cwd=directory, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one committed file."""
    if GIT is None:
        pytest.skip("git is not installed")
    directory = tmp_path / "repository"
    directory.mkdir()
    git(directory, "init", "--quiet")
    (directory / "run.sh").write_text("one\n")
    git(directory, "add", "run.sh")
    git(directory, "commit", "--quiet", "--message", "one")
    return directory


@pytest.fixture
def sprung(repository: Path) -> Path:
    """The file that exists once git has run a command of the repository's own configuration."""
    found = repository.parent / "sprung"
    command = repository / "command.sh"
    command.write_text(f"#!/bin/sh\necho run >> '{found}'\ncat\n")
    command.chmod(0o755)
    (repository / ".git" / "hooks" / "post-index-change").write_text(command.read_text())
    (repository / ".git" / "hooks" / "post-index-change").chmod(0o755)
    for key in ("core.fsmonitor", "filter.evil.clean", "diff.external", "diff.evil.textconv", "core.pager"):
        git(repository, "config", key, str(command))
    (repository / ".git" / "info" / "attributes").write_text("* filter=evil diff=evil\n")
    return found


def test_git_runs_no_command_of_a_repository(repository: Path, sprung: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (repository / "run.sh").write_text("two\n")  # same size: git status would filter and compare the content
    subprocess.run(["git", "status"], cwd=repository, check=True, capture_output=True)
    assert sprung.exists()  # the trap works
    sprung.unlink()
    monkeypatch.chdir(repository)
    state = git_state()
    assert state is not None
    assert state["has_changes"]
    assert not sprung.exists()


def test_git_fetches_no_missing_objects(repository: Path, sprung: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a partial clone, git fetches them with a command that the repository names."""
    git(repository, "config", "core.repositoryFormatVersion", "1")
    git(repository, "config", "extensions.partialClone", "origin")
    git(repository, "config", "remote.origin.promisor", "true")
    git(repository, "config", "remote.origin.url", f"{repository.parent}/none")
    git(repository, "config", "remote.origin.uploadpack", str(repository / "command.sh"))
    for path in (repository / ".git" / "objects").glob("??/*"):
        content = subprocess.run(
            ["git", "cat-file", "-t", path.parent.name + path.name], cwd=repository, capture_output=True, text=True
        )
        if content.stdout.strip() == "tree":
            path.unlink()
    sprung.unlink(missing_ok=True)
    monkeypatch.chdir(repository)
    git_state()
    assert not sprung.exists()


def test_the_state_of_git(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository)
    state = git_state()
    assert state is not None
    assert len(state["commit"]) == 40
    assert state["has_changes"] is False
    (repository / "new").write_text("x")
    assert (git_state() or {})["has_changes"] is True
    (repository / "new").unlink()
    git(repository, "rm", "--quiet", "run.sh")
    assert (git_state() or {})["has_changes"] is True
    monkeypatch.chdir(repository.parent)
    assert git_state() is None


OWN = """
import sys, yaml
from tympan.runtime.compiled import compiled
sys.path.append(sys.argv[1])
import own
print(compiled()(own.double)(4), yaml.safe_load("[1]"))
"""


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """A directory with a function to compile."""
    directory = tmp_path / "modules"
    directory.mkdir()
    (directory / "own.py").write_text("def double(x):\n    return 2 * x\n")
    return directory


@pytest.mark.parametrize("config", ["cache_dir: cache\n", "a: ["])
def test_numba_reads_no_settings_from_the_working_directory(tmp_path: Path, modules: Path, config: str) -> None:
    """`.numba_config.yaml` could name a directory of compiled functions, which numba unpickles."""
    directory = tmp_path / "directory"
    directory.mkdir()
    (directory / ".numba_config.yaml").write_text(config)
    done = run_in(directory, OWN, str(modules))
    assert (done.returncode, done.stdout, done.stderr) == (0, "8 [1]\n", "")
    assert [path.name for path in directory.iterdir()] == [".numba_config.yaml"]


@pytest.mark.parametrize(("suffix", "content"), [("nbi", b""), ("nbi", b"\xff" * 50), ("nbc", b"\x80")])
def test_damaged_files_of_compiled_functions_are_made_again(
    tmp_path: Path, modules: Path, suffix: str, content: bytes
) -> None:
    variables = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    assert run_in(tmp_path, OWN, str(modules), **variables).stdout == "8 [1]\n"
    (path,) = (tmp_path / "cache").rglob(f"*.{suffix}")
    path.write_bytes(content)
    for warning in ("damaged", ""):
        done = run_in(tmp_path, OWN, str(modules), **variables)
        assert (done.returncode, done.stdout) == (0, "8 [1]\n"), done.stderr
        assert warning in done.stderr
        assert bool(warning) == bool(done.stderr)


def test_numba_is_imported_in_one_place() -> None:
    found = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.Import) and any(name.name.startswith("numba") for name in node.names))
        or (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("numba"))
    }
    assert found == set()  # runtime/compiled.py imports it by its name


PLOT = """
import sys
from pathlib import Path
from tympan.training.curves import draw_curve
draw_curve(Path(sys.argv[1]), "loss", {"train": [(1, 2.0), (2, 1.0)]})
"""


@pytest.mark.parametrize("content", [b"savefig.dpi: 0\n", b"text.usetex: True\n", b"\xff", None])
def test_matplotlib_reads_no_settings_from_the_working_directory(tmp_path: Path, content: bytes | None) -> None:
    """`savefig.dpi: 0` ended a training run with a traceback; a pipe (None) waited for ever."""
    directory = tmp_path / "directory"
    directory.mkdir()
    if content is None:
        os.mkfifo(directory / "matplotlibrc")
    else:
        (directory / "matplotlibrc").write_bytes(content)
    done = run_in(directory, PLOT, str(tmp_path / "loss.png"))
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_matplotlib_is_imported_without_its_file(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    first = text.find("from matplotlib")
    assert first < 0 or "import_matplotlib()" in text[:first]


def run_in(directory: Path, code: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*code_command(code), *arguments], cwd=directory, env={**environment(), **variables}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
