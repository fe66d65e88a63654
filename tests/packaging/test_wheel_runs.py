"""A wheel in an environment of its own, away from the checkout: the commands find their files, the demo runs."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from wheels import build_wheel, copy_checkout, without_checkout

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


class Installed:
    """An environment whose tympan is the wheel's; the dependencies are those of the running Python."""

    def __init__(self, home: Path) -> None:
        self.home = home
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
        self.python = home / "bin" / "python"
        (libraries,) = home.glob("lib/python*/site-packages")
        # The .pth files of a directory named in a .pth file are not read: an editable tympan there is not found.
        (libraries / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")

    def install(self, wheel: Path) -> None:
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "--no-deps", "--no-index"]
        subprocess.run([*pip, str(wheel)], check=True, env=without_checkout())

    def tympan(self, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        command = [str(self.home / "bin" / "tympan"), *arguments]
        return subprocess.run(command, cwd=cwd, env=without_checkout(), capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    work = tmp_path_factory.mktemp("installed")
    wheel = build_wheel(copy_checkout(work / "checkout"), work)
    environment = Installed(work / "env")
    environment.install(wheel)
    return environment


@pytest.fixture(scope="module")
def demo(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a demo that ran to its end."""
    pytest.importorskip("espeakng_loader", reason="the extra 'demo' is not installed")
    work = tmp_path_factory.mktemp("work")
    done = installed.tympan("demo", cwd=work)
    assert done.returncode == 0, done.stderr
    return work / "demo"


def only(directory: Path, pattern: str) -> Path:
    (found,) = directory.glob(pattern)
    return found


def test_tympan_is_the_wheels(installed: Installed, tmp_path: Path) -> None:
    code = "import tympan; print(tympan.__file__)"
    done = subprocess.run(
        [str(installed.python), "-c", code],
        cwd=tmp_path,
        env=without_checkout(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(done.stdout.strip()).is_relative_to(installed.home)


def test_check_install(installed: Installed, tmp_path: Path) -> None:
    done = installed.tympan("check_install", cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "everything that Tympan needs works on this machine")


def test_recipes_bring_their_settings(installed: Installed, tmp_path: Path) -> None:
    done = installed.tympan("recipe", "aishell", "--check", "--ngpu", "0", cwd=tmp_path)
    assert f"using the configuration files in {installed.home}" in done.stdout
    for part in ("features", "lm", "asr", "device", "decoding"):
        assert f"  {part:<10} ok\n" in done.stdout
    assert done.returncode == 0 or "free some space" in done.stderr, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_demo_learns(demo: Path) -> None:
    page = only(demo, "exp/*_demo/decode_test_*/report.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    table = only(demo, "exp/*_demo/decode_test_*/score_cer/RESULTS.md").read_text().splitlines()
    assert float(table[-1].split("|")[8]) < 5.0


def test_transcribe_and_report(installed: Installed, demo: Path, tmp_path: Path) -> None:
    model = only(demo, "exp/*_demo/packed*")
    utterance, wav = (demo / "data" / "test" / "wav.scp").read_text().splitlines()[0].split()
    done = installed.tympan("transcribe", str(model), wav, cwd=tmp_path)
    texts = dict(line.split(maxsplit=1) for line in (demo / "data" / "test" / "text").read_text().splitlines())
    assert texts[utterance].replace(" ", "") in done.stdout.replace(" ", "")
    (tmp_path / "hyp").write_text("".join(f"{name} {text}\n" for name, text in texts.items()))
    data = demo / "data" / "test"
    done = installed.tympan("report", str(data / "text"), "hyp", "--data_dir", str(data), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert utterance in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_recipe_new(installed: Installed, demo: Path, tmp_path: Path) -> None:
    sets = ["--train_dir", str(demo / "data" / "train"), "--dev_dir", str(demo / "data" / "dev")]
    done = installed.tympan("recipe", "new", "mine", *sets, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = {path.name for path in (tmp_path / "mine" / "conf").iterdir()}
    assert found == {"recipe.yaml", "train.yaml", "decode.yaml", "fbank.conf", "pitch.conf", "specaug.yaml"}
    checked = subprocess.run(
        [str(tmp_path / "mine" / "run.sh"), "--check", "--stop_stage", "features"],
        env=without_checkout() | {"PATH": f"{installed.home / 'bin'}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr
