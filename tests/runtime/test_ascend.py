"""Ascend without a card: what is missing is named with its remedy, and the CPU works all the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tympan.runtime import ascend

SET_ENV = "source /usr/local/Ascend/ascend-toolkit/set_env.sh"
NO_LIBRARY = "libhccl.so: cannot open shared object file: No such file or directory"
MINOR = ".".join(torch.__version__.split(".")[:2])


def install(directory: Path, *, version: str, raises: str) -> dict[str, str]:
    """A package torch_npu that can't be imported, with the entry point by which torch loads it at import."""
    (directory / "torch_npu").mkdir(parents=True)
    (directory / "torch_npu" / "__init__.py").write_text(f"raise {raises}\n", encoding="utf-8")
    info = directory / f"torch_npu-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.4\nName: torch_npu\nVersion: {version}\n\n"
        "| CANN Version | Supported PyTorch | Extension |\n|---|---|---|\n"
        f"| CANN 9.9.0 | x | 9.9.9 |\n| | {version} | {version} |\n",
        encoding="utf-8",
    )
    (info / "entry_points.txt").write_text("[torch.backends]\ntorch_npu = torch_npu:_autoload\n", encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ASCEND", "TORCH_DEVICE"))}
    return {**kept, "PYTHONPATH": str(directory), "OMP_NUM_THREADS": "1", "HOME": str(directory)}


def run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tympan", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)


@pytest.fixture
def without_cann(tmp_path: Path) -> dict[str, str]:
    return install(tmp_path / "site", version=f"{MINOR}.0", raises=f"ImportError({NO_LIBRARY!r})")


def test_a_command_that_asks_for_a_card_names_the_remedy(without_cann: dict[str, str], tmp_path: Path) -> None:
    done = run(without_cann, *_dry_run(tmp_path, "--ngpu", "1"))
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert SET_ENV in done.stderr
    assert f"torch-npu {MINOR}.0 is installed" in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_cpu_works_with_one_warning(without_cann: dict[str, str], tmp_path: Path) -> None:
    done = run(without_cann, *_dry_run(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Ascend cards can't be used, this run uses the CPU") == 1
    assert SET_ENV in done.stderr


def test_check_install_lists_the_parts(without_cann: dict[str, str]) -> None:
    done = run(without_cann, "check_install")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = dict(
        line.strip().removeprefix("Ascend: ").split(maxsplit=1)
        for line in done.stdout.splitlines()
        if "Ascend: " in line
    )
    assert list(lines) == ["torch", "torch-npu", "CANN", "driver", "cards"]
    assert SET_ENV in lines["torch-npu"]
    assert SET_ENV in lines["CANN"]
    failed = run(without_cann, "check_install", "--device", "npu")
    assert failed.returncode == 1
    assert "failed: device" in failed.stdout


def test_a_release_for_another_torch(tmp_path: Path) -> None:
    environment = install(tmp_path / "site", version="2.1.0", raises="SystemExit('it must not be imported')")
    done = run(environment, *_dry_run(tmp_path, "--device", "npu"))
    assert done.returncode == 2, done.stderr
    assert f"torch-npu 2.1.0 needs torch 2.1, found {torch.__version__}" in done.stderr
    assert f"pip install 'torch-npu=={MINOR}.*'" in done.stderr


def test_automatic_loading_that_the_user_asked_for(without_cann: dict[str, str], tmp_path: Path) -> None:
    done = run({**without_cann, "TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}, *_dry_run(tmp_path))
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "Unset the variable" in done.stderr


def test_the_variables_are_set_before_the_package_is_imported(tmp_path: Path) -> None:
    package = tmp_path / "torch_npu"
    package.mkdir()
    code = "import os\nraise ImportError('queue ' + os.environ.get('TASK_QUEUE_ENABLE', 'unset'))\n"
    (package / "__init__.py").write_text(code, encoding="utf-8")
    for given, expected in (({}, "queue 1"), ({"TASK_QUEUE_ENABLE": "2"}, "queue 2")):
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1", **given}
        done = run(environment, *_dry_run(tmp_path, "--device", "npu"))
        assert done.returncode == 2
        assert expected in done.stderr


@pytest.mark.parametrize(("first", "expected"), [("tympan, torch", "0"), ("torch, tympan", "None")])
def test_importing_tympan_switches_automatic_loading_off_if_torch_is_not_imported(first: str, expected: str) -> None:
    code = f"import os, {first}; print(os.environ.get('TORCH_DEVICE_BACKEND_AUTOLOAD'))"
    kept = {name: value for name, value in os.environ.items() if name != "TORCH_DEVICE_BACKEND_AUTOLOAD"}
    done = subprocess.run([sys.executable, "-c", code], env=kept, capture_output=True, text=True, timeout=100)
    assert done.stdout.strip() == expected, done.stderr


@pytest.fixture
def cann(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "ascend-toolkit" / "latest"
    (home / "compiler").mkdir(parents=True)
    (home / "compiler" / "version.info").write_text("Version=8.0.RC3\nversion_dir=8.0.RC3\n", encoding="utf-8")
    (home.parent / "set_env.sh").touch()
    monkeypatch.setattr(ascend, "ROOTS", (tmp_path,))
    monkeypatch.setattr(ascend, "version", lambda: "2.13.0")
    for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"):
        monkeypatch.delenv(name, raising=False)
    return home


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (NO_LIBRARY, "CANN's library libhccl.so is not on the library path: run 'source {place}/set_env.sh'"),
        ("libascend_hal.so: cannot open shared object file", "install the Ascend driver"),
        ("undefined symbol: aclrtNew, version x", "CANN 8.0.RC3 in {place}/latest does not have the function aclrtNew"),
        ("undefined symbol: _ZN3c105ErrorC2E", "torch-npu 2.13.0 was built for another torch than"),
        ("Two accelerators cannot be used at the same time: npu and cuda", "install the CPU build of torch"),
        ("", "torch-npu 2.13.0 can't be imported (ImportError: no reason given)"),
    ],
)
def test_causes_and_remedies(cann: Path, said: str, message: str) -> None:
    assert message.format(place=cann.parent) in ascend.explain(ImportError(said))


def test_versions_of_cann(cann: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ascend.cann_version() == "8.0.RC3"
    parts = {part.name: part for part in ascend.parts()}
    assert f"run 'source {cann.parent}/set_env.sh'" in str(parts["CANN"].problem)
    monkeypatch.setenv("ASCEND_HOME_PATH", str(cann))
    assert ascend.parts()[2] == ascend.Part("CANN", f"8.0.RC3 in {cann}")


def test_the_release_of_cann_comes_from_the_package(tmp_path: Path) -> None:
    environment = install(tmp_path / "site", version=f"{MINOR}.0", raises=f"ImportError({NO_LIBRARY!r})")
    done = run(environment, *_dry_run(tmp_path, "--ngpu", "1"))
    assert f"torch-npu {MINOR}.0 is listed with CANN 9.9.0 in https://" in done.stderr


def _dry_run(directory: Path, *arguments: str) -> list[str]:
    tokens = directory / "tokens.txt"
    tokens.write_text("<blank>\n<unk>\na\n<sos/eos>\n", encoding="utf-8")
    return [
        "asr_train", "--token_list", str(tokens), "--dry_run", "true", "--iterator_type", "none", "--input_size", "8",
        "--encoder", "rnn", "--encoder_conf", "hidden_size=4", "--decoder", "null", "--frontend", "null",
        "--model_conf", "ctc_weight=1.0", "--output_dir", str(directory / "exp"), *arguments,
    ]  # fmt: skip
