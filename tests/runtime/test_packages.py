"""A package that is missing or broken: one message that names it and the command to install it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tympan.runtime.packages import EXTRAS, NEEDED, import_fault, install_command

BLOCK = "import sys; sys.modules[{name!r}] = None; from tympan.bin.main import cli; sys.exit(cli({argv!r}))"
BROKEN = "import sys; sys.path.insert(0, {place!r}); from tympan.bin.main import cli; sys.exit(cli({argv!r}))"


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("package", "argv", "install"),
    [
        ("pydantic", ["asr_train", "--help"], "pip install pydantic"),
        ("yaml", ["recipe", "an4", "--check"], "pip install pyyaml"),
        ("numpy", ["validate_data", "data"], "pip install numpy"),
        ("soundfile", ["transcribe", "model", "a.wav"], "pip install soundfile"),
        ("torch", ["transcribe", "model", "a.wav"], "pip install torch"),
    ],
)
def test_a_missing_package_is_named_with_its_install_command(
    package: str, argv: list[str], install: str, tmp_path: Path
) -> None:
    done = run(BLOCK.format(name=package, argv=argv))
    assert "Traceback" not in done.stderr
    assert done.stderr.endswith(f"the package '{package}' is not installed: {install}\n")
    assert done.returncode == 2


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("raise OSError('sndfile library not found')", "can't be imported (OSError: sndfile library not found)"),
        (
            "raise ImportError('libsndfile.so: cannot open')",
            "can't be imported (ImportError: libsndfile.so: cannot open)",
        ),
        ("raise RuntimeError('built for numpy 1')", "can't be imported (RuntimeError: built for numpy 1)"),
        ("None.name", "can't be imported (AttributeError: 'NoneType' object has no attribute 'name')"),
        ("import no_such_package", "needs 'no_such_package', which is not installed: pip install no_such_package"),
    ],
    ids=["OSError", "ImportError", "RuntimeError", "AttributeError", "dependency"],
)
def test_a_broken_package_is_named(line: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "soundfile.py").write_text(f"{line}\n")
    done = run(BROKEN.format(place=str(tmp_path), argv=["transcribe", "model", "a.wav"]))
    assert "Traceback" not in done.stderr
    assert "the package 'soundfile' " in done.stderr
    assert reason in done.stderr
    assert done.returncode == 2


@pytest.mark.parametrize("kind", ["ImportError", "RuntimeError"])
@pytest.mark.parametrize(
    ("package", "argv", "purpose"),
    [
        (
            "distributed",
            ["validate_data", ".", "--executor", "dask", "--dask_address", "tcp://[::1]:1"],
            "--executor dask",
        ),
        ("sacrebleu", ["st_score", "text", "text"], "BLEU and chrF scoring"),
        ("datasets", ["manifest_data", "saved", "out"], "saved is a dataset of Hugging Face; reading it"),
        ("huggingface_hub", ["transcribe", "owner/name", "a.wav"], "owner/name: no such folder; loading it"),
        ("espeakng_loader", ["demo"], "speech synthesis with espeak-ng"),
    ],
)
def test_a_broken_extra_is_not_called_missing(
    package: str, argv: list[str], purpose: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pip install 'tympan[wandb]'` installs nothing where wandb is installed and broken."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stubs").mkdir()
    (tmp_path / "stubs" / f"{package}.py").write_text(f"raise {kind}('libfoo.so.1: cannot open')\n")
    for name, line in (("text", "a GO\n"), ("utt2spk", "a a\n"), ("wav.scp", "a a.wav\n")):
        (tmp_path / name).write_text(line)
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "dataset_info.json").write_text("{}")
    done = run(BROKEN.format(place=str(tmp_path / "stubs"), argv=argv))
    assert "Traceback" not in done.stderr
    assert purpose in done.stderr
    again = f"pip install --force-reinstall --no-deps {package.replace('_', '-')}"
    assert f"can't be imported ({kind}: libfoo.so.1: cannot open). Install it again: {again}" in done.stderr
    assert done.returncode == 2
    missing = run(BLOCK.format(name=package, argv=argv))
    assert f"needs the package {package}: {install_command(package)}" in missing.stderr
    assert missing.returncode == 2


def test_check_install_lists_what_is_broken(tmp_path: Path) -> None:
    for name in ("soundfile", "sacrebleu"):
        (tmp_path / f"{name}.py").write_text("raise OSError('library not found')\n")
    done = run("import sys; sys.modules['numba'] = None\n" + BROKEN.format(place=str(tmp_path), argv=["check_install"]))
    assert "Traceback" not in done.stdout + done.stderr
    lines = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert "the package 'numba' is not installed: pip install numba" in lines["numba"]
    assert "OSError: library not found" in lines["soundfile"]
    assert "pip install --force-reinstall --no-deps soundfile" in lines["soundfile"]
    assert "BROKEN" in lines["sacrebleu"]
    assert lines["failed:"].startswith("failed: soundfile, numba")
    assert done.returncode == 1


def test_check_install_lists_every_extra() -> None:
    from tympan.bin.check_install import PURPOSES

    assert PURPOSES.keys() == EXTRAS.keys()


def test_our_own_import_mistakes_keep_their_traceback() -> None:
    code = "from tympan.bin.main import run\nrun(lambda argv: __import__('tympan.no_such_module'))"
    assert "Traceback" in run(code).stderr


def test_the_tables_are_those_of_the_project_file() -> None:
    import re

    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    core = re.search(r"^dependencies = \[(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    assert core is not None
    assert sorted(re.findall(r'"([\w-]+)', core[1])) == sorted(NEEDED.values())
    for package, extra in EXTRAS.items():
        line = re.search(rf"^{extra} = \[(.*?)\]", text, re.MULTILINE)
        assert line is not None
        assert package.replace("_", "-") in line[1]
    assert install_command("wandb") == "pip install 'tympan[wandb]'"
    assert import_fault("json") is None
