"""Every command that the documentation shows: it parses, it runs, or the page says why it is not run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_recipe import DECODE, LM, ROOT, TRAIN, aishell, new_workplace

pytest.importorskip("espeakng_loader", reason="the extra 'demo' makes the corpus of these tests")

PAGES = [
    ROOT / "docs" / f"{name}.md" for name in ("tutorial", "aishell", "training-options", "migration", "troubleshooting")
]
NOT_RUN = re.compile(r"# not run[^:]*: \S")


def blocks(page: Path) -> Iterator[list[str]]:
    """The commands of each ```bash block; a block that says why it is not run is left out."""
    for block in re.findall(r"^```bash\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        if NOT_RUN.search(block):
            continue
        lines = block.replace("\\\n", " ").splitlines()
        yield [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def commands(page: Path) -> list[str]:
    return [line for block in blocks(page) for line in block]


def run(command: str, directory: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["bash", "-c", command], cwd=directory, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page_has_commands_and_they_name_commands_that_exist(page: Path) -> None:
    from tympan.bin.main import commands as known

    found = commands(page)
    assert found
    for command in found:
        words = shlex.split(command)
        if words[0] == "tympan":
            assert words[1] in known(), command
        else:
            assert words[0] in ("cd", "./run.sh", "mine/run.sh"), f"{page.name} shows '{command}', which no test runs"


@pytest.mark.parametrize("page", ["training-options", "migration", "troubleshooting"])
def test_options_that_pages_show_are_accepted(page: str, tmp_path: Path) -> None:
    """Parsing alone, so that a renamed option is found at once; the slow test runs them."""
    from tympan.config import parse_training
    from tympan.config.asr import AsrTrainConfig

    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "train.yaml").write_text(TRAIN)
    for command in commands(ROOT / "docs" / f"{page}.md"):
        words = [
            word.replace("conf/train.yaml", str(tmp_path / "conf" / "train.yaml")) for word in shlex.split(command)
        ]
        if words[:2] == ["tympan", "asr_train"] and not {"--help", "--print_config"} & set(words):
            parse_training(AsrTrainConfig, words[2:], prog="tympan asr_train")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished tiny recipe: what the pages take for granted."""
    from tympan.recipe.demo import Size, make_archives

    archives = tmp_path_factory.mktemp("archives")
    make_archives(archives, Size(train=2, dev=1, test=1, sentences=3), seed=0)
    directory = new_workplace(tmp_path_factory.mktemp("docs"), archives)
    aishell(directory, "--stage", "-1")
    return directory


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_training_options_page(corpus: Path, tmp_path: Path) -> None:
    shutil.copytree(corpus, tmp_path / "here", symlinks=True)
    here = tmp_path / "here"
    complete = (corpus / "exp" / "train_pytorch_train" / "config.yaml").read_text(encoding="utf-8")
    complete = re.sub(r"^output_dir: .*$", "output_dir: exp/docs", complete, flags=re.MULTILINE)
    (here / "conf" / "train.yaml").write_text(re.sub(r"^max_epoch: .*$", "max_epoch: 1", complete, flags=re.MULTILINE))
    for command in commands(ROOT / "docs" / "training-options.md"):
        if "--resume" not in command:
            shutil.rmtree(here / "exp" / "docs", ignore_errors=True)
        run(command, here)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_tutorial_page(corpus: Path, tmp_path: Path) -> None:
    for name in ("train", "dev", "test"):
        shutil.copytree(corpus / "data" / name, tmp_path / "data" / name)
    recording = next((corpus / "downloads").rglob("*.wav"))
    packed = "mine/exp/train_sp_pytorch_train/packed_model.last10.avg_decode"
    for command in commands(ROOT / "docs" / "tutorial.md"):
        done = run(command.replace("/recordings/one.flac", str(recording)), tmp_path)
        if command.startswith("tympan recipe new"):
            for name, content in (("train", TRAIN), ("lm", LM), ("decode", DECODE)):
                (tmp_path / "mine" / "conf" / f"{name}.yaml").write_text(content)
        if command == "mine/run.sh":
            assert f"tympan transcribe {packed.removeprefix('mine/')}" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_aishell_page(corpus: Path, tmp_path: Path) -> None:
    here = tmp_path / "egs" / "aishell" / "asr1"
    shutil.copytree(corpus, here, symlinks=True)
    shutil.copy(ROOT / "egs" / "aishell" / "asr1" / "run.sh", here)
    run("./run.sh --stage 1 --ngpu 0", here)
    for command in commands(ROOT / "docs" / "aishell.md"):
        if command != "cd egs/aishell/asr1":
            run(command.replace("/corpora/aishell", str(here / "archives")), here)


@pytest.mark.slow
@pytest.mark.parametrize("page", ["migration", "troubleshooting"])
def test_other_pages(corpus: Path, page: str) -> None:
    for command in commands(ROOT / "docs" / f"{page}.md"):
        run(command, corpus)
