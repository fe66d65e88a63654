"""Every command in the documentation parses and runs, or the page states why it is not run."""

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

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
OWN_WAY = ("aishell", "tasks", "tutorial", "training-options", "migration", "troubleshooting")
"""Pages whose commands have their own test, below or in tests/tasks."""
ONE_WAY = ("README", "data", "decoding", "language-models", "text-and-batches")
"""Pages whose commands run one after the other in a directory with the files that they name."""
FENCE = re.compile(r"(?:^ *<!-- not run[^:\n]*: (\S[^\n]*) -->\n)?^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
"""A block of code; a comment right before it, which does not render, states why the tests do not run it."""


def fenced(page: Path, language: str) -> list[str]:
    return [body for _, kind, body in FENCE.findall(page.read_text(encoding="utf-8")) if kind == language]


def lines_of(block: str) -> list[str]:
    lines = block.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def blocks(page: Path) -> Iterator[list[str]]:
    """The commands of each ```bash block; a block with a reason why it is not run is left out."""
    for reason, kind, block in FENCE.findall(page.read_text(encoding="utf-8")):
        if kind == "bash" and not reason:
            yield lines_of(block)


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
def test_every_command_is_run_or_has_a_reason_not_to(page: Path) -> None:
    from tympan.bin.main import commands as known

    outside = FENCE.sub("", page.read_text(encoding="utf-8"))
    hidden = re.findall(
        r"^ {4,}(?:\$ )?(?:tympan|make|pip|dask|srun|torchrun|mpirun|bash|python|\./\S+|egs/\S+) .*",
        outside,
        re.MULTILINE,
    )
    assert not hidden, "commands go into ```bash blocks, where the tests find them"
    for command in commands(page):
        words = shlex.split(command, comments=True)
        if words[0] == "tympan":
            assert len(words) == 1 or words[1] in known(), command
        else:
            assert words[0] in ("cd", "eval", "./run.sh", "mine/run.sh"), f"'{command}' is run by no test"
        assert page.stem in OWN_WAY + ONE_WAY, f"no test runs '{command}'"


def shown(page: Path) -> Iterator[list[str]]:
    """The words of every Tympan command on a page, run or not: in blocks, and between backticks."""
    text = page.read_text(encoding="utf-8")
    lines = [line.strip() for block in fenced(page, "bash") for line in lines_of(block)]
    for line in lines + re.findall(r"`(tympan [^`]+)`", FENCE.sub("", text)):
        words = line.split(" #")[0].replace("python -m tympan.bin.", "tympan ").split()
        if "tympan" in words and not {"COMMAND", "$(tympan"} & set(words):
            yield words[words.index("tympan") + 1 :]
        elif words[0].endswith("run.sh"):
            yield ["recipe", *words[1:]]
        elif words[0] == "bash":
            yield ["ascend_test", *words[2:]]


def test_options_that_pages_show_exist(capsys: pytest.CaptureFixture[str]) -> None:
    """Also checks commands that no test machine can run, so that a renamed option is found on every page."""
    from tympan.bin.main import cli

    helps: dict[tuple[str, ...], str] = {}
    wrong = []
    for page in PAGES:
        for words in shown(page):
            name = tuple(words[:2] if words[:2] == ["recipe", "new"] else words[:1])
            if not name or name[0].startswith("-"):
                continue
            if name == ("train",):
                # A task's own options: tests/tasks runs those of tasks.md
                if len(words) < 2 or ":" in words[1] or words[1].isupper():
                    continue
                name = (*words[:2],)
            if name not in helps:
                with pytest.raises(SystemExit) as ended:
                    raise SystemExit(cli([*name, "--help"]))
                assert ended.value.code == 0, f"{page.name}: {' '.join(words)}"
                helps[name] = capsys.readouterr().out
            known = set(re.findall(r"--\w+", helps[name])) | {"--help", "--print_config", "--config"}
            wrong += [
                f"{page.name}: {' '.join(words)}: {word}"
                for word in words
                if word.startswith("--") and re.split("[=/]", word)[0] not in known
            ]
    assert not wrong
    assert len(helps) > 15


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_python_that_pages_show(page: Path) -> None:
    """The block is valid Python, and its imports exist."""
    import ast
    import importlib

    for block in fenced(page, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                module = importlib.import_module(node.module)
                assert all(hasattr(module, alias.name) for alias in node.names), ast.unparse(node)


@pytest.mark.parametrize("page", ["training-options", "migration", "troubleshooting"])
def test_options_that_pages_show_are_accepted(page: str, tmp_path: Path) -> None:
    """Only parses the commands, so that a renamed option is found at once. The slow test runs them."""
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
    """A finished tiny recipe, which the pages assume."""
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
    shutil.copy(corpus / "downloads" / "resource_aishell" / "lexicon.txt", tmp_path)
    recording = next((corpus / "downloads").rglob("*.wav"))
    packed = "mine/exp/train_pytorch_train/packed_model.last10.avg_decode"
    for command in commands(ROOT / "docs" / "tutorial.md"):
        done = run(command.replace("/recordings/one.flac", str(recording)), tmp_path)
        if command.startswith("tympan recipe new mine "):
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


@pytest.fixture
def furnished(corpus: Path, tmp_path: Path) -> Path:
    """The files that the pages name: models, recordings, texts, configurations."""
    import soundfile

    here = tmp_path / "here"
    shutil.copytree(corpus, here, symlinks=True)
    experiment, lm = here / "exp" / "train_pytorch_train", here / "exp" / "train_rnnlm_pytorch_lm"
    shutil.copytree(experiment, here / "exp" / "asr", symlinks=True)
    shutil.copytree(lm, here / "exp" / "lm", symlinks=True)
    shutil.copytree(here / "exp" / "train_ngram", here / "exp" / "ngram")
    shutil.copytree(next(experiment.glob("packed_*")), here / "MODEL")
    samples, rate = soundfile.read(next((corpus / "downloads").rglob("*.wav")))
    for name in ("a.wav", "b.mp3", "talk.flac"):
        soundfile.write(here / name, samples, rate)
    (here / "recordings").mkdir()
    shutil.copy(here / "a.wav", here / "recordings")
    (here / "talks" / "monday").mkdir(parents=True)
    shutil.copy(here / "a.wav", here / "talks" / "monday")
    (here / "data" / "token_list").mkdir()
    shutil.copy(here / "data" / "lang_1char" / "tokens.txt", here / "data" / "token_list")
    for name in ("train.txt", "dev.txt"):
        shutil.copy(here / "data" / "local" / "lm_train" / "train.txt", here / name)
    shutil.copy(here / "conf" / "tuning" / "train_pytorch_conformer_kernel15.yaml", here / "espnet1_train.yaml")
    complete = (experiment / "config.yaml").read_text(encoding="utf-8")
    complete = re.sub(r"^output_dir: .*$", "output_dir: exp/docs", complete, flags=re.MULTILINE)
    (here / "conf" / "train.yaml").write_text(complete, encoding="utf-8")
    return here


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", ONE_WAY)
def test_pages_one_command_after_the_other(furnished: Path, page: str) -> None:
    """Run the commands as written, except for sizes and texts that need more than a dozen sentences."""
    said = (furnished / "data" / "train" / "text").read_text(encoding="utf-8").split()[1]
    smaller = {"--nj 8": "--nj 2", "--vocab_size 500": "--vocab_size 50", "WHAT WAS SAID": said}
    # The test sentences have characters that so few training sentences lack
    smaller["asr_align MODEL --data_dir data/test"] = "asr_align MODEL --data_dir data/train"
    path = next(path for path in PAGES if path.stem == page)
    for command in commands(path):
        for old, new in smaller.items():
            command = command.replace(old, new)
        run(command, furnished)
