"""Every name, option, file, link and message in the documentation exists."""

from __future__ import annotations

import ast
import contextlib
import errno
import importlib
import io
import os
import re
from pathlib import Path

import pytest

from tympan.bin.main import cli, commands

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "benchmarks").glob("*.md")])
DOTTED = re.compile(r"\btympan(?:\.[A-Za-z_]\w*)+")
FOLDERS = (
    "docs|tests|benchmarks|egs|src|tympan|bin|config|data|decode|features|models|nn|recipe|runtime|score|tasks|text"
    "|training|tuning"
)
FILE = re.compile(rf"(?<![\w/.-])(?:{FOLDERS})/[\w/]+\.(?:py|md|sh|yaml)\b")
PLACEHOLDER = re.compile(r"\b[A-Z]{3,}\b")
PAST = {"CHANGELOG.md", "NOTES.md"}
"""Pages about the past."""
LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s#:]*)(?:#([^)\s]*))?\)")
HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)
GENERATED = ("commands/index.md",)
"""Pages that exist only on the documentation site."""


CODE = re.compile(r"`([^`\n]+)`")
OPTION = re.compile(r"(?<![\w-])--[A-Za-z][\w-]*")
OTHER_PROGRAMS = {
    "--strict",  # mypy
    "--allow-downsample", "--snip-edges", "--simulate-first-pass-online", "--sample-frequency", "--name",  # Kaldi
    "--nnodes", "--nproc_per_node", "--rdzv_backend", "--rdzv_endpoint",  # torchrun
    "--ntasks", "--ntasks-per-node",  # srun
    "--asr_config", "--batch-count", "--asr_tag", "--inference_config", "--lm_tag", "--ngram_num", "--num_splits_asr",
    "--num_splits_lm", "--speed_perturb_factors", "--use_lm", "--use_ngram",  # ESPnet's asr.sh
}  # fmt: skip
"""Options of programs other than Tympan that the pages mention."""
SCRIPTS = {
    option
    for script in (ROOT / "benchmarks").glob("*.py")
    for option in OPTION.findall(script.read_text(encoding="utf-8"))
}
"""Options of the benchmarks, which the pages under benchmarks/ name."""


EXAMPLES = {"tympan.recipe.yesno"}
"""Modules that the reader of a page writes."""


def resolve(name: str) -> None:
    """Import the longest module of a dotted name and look up the rest."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            annotations = getattr(found, "__annotations__", {})
            fields = getattr(found, "__dataclass_fields__", {})
            if not hasattr(found, part) and (part in annotations or part in fields):
                return
            found = getattr(found, part)
        return
    raise ModuleNotFoundError(name)


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in PAST], ids=lambda page: page.name)
def test_names_exist(page: Path) -> None:
    missing = []
    for name in sorted(set(DOTTED.findall(page.read_text(encoding="utf-8")))):
        if PLACEHOLDER.search(name) or name in EXAMPLES:
            continue
        try:
            resolve(name)
        except (AttributeError, ModuleNotFoundError) as error:
            missing.append(f"{name}: {error}")
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in PAST], ids=lambda page: page.name)
def test_files_exist(page: Path) -> None:
    named = set(FILE.findall(page.read_text(encoding="utf-8")))
    places = (ROOT, ROOT / "src", ROOT / "src" / "tympan")
    missing = [
        name
        for name in sorted(named)
        if not PLACEHOLDER.search(name) and not any((place / name).exists() for place in places)
    ]
    assert not missing, f"{page.name} names files that do not exist: {', '.join(missing)}"


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MkDocs form them."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = (re.sub(r"[^\w\s-]", "", found).strip().lower() for found in HEADING.findall(text))
    return {re.sub(r"[-\s]+", "-", heading) for heading in headings}


def broken_links(page: Path, text: str) -> list[str]:
    """Links of the text to files or headings that do not exist."""
    broken = []
    for target, anchor in LINK.findall(text):
        file = page.parent / target if target else page
        if target in GENERATED or (file.exists() and (not anchor or anchor in anchors(file))):
            continue
        broken.append(f"{target}#{anchor}")
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_a_file_and_a_heading(page: Path) -> None:
    assert broken_links(page, page.read_text(encoding="utf-8")) == []


def test_a_broken_link_is_found() -> None:
    page = ROOT / "docs" / "how-to.md"
    assert broken_links(page, "[a](decoding.md#the-searches-search) [b](decoding.md#nothing)") == [
        "decoding.md#nothing"
    ]
    assert broken_links(page, "[a](nothing.md) [b](#fine-tune-a-model)") == ["nothing.md#"]


def test_readme_links_every_page() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f"(docs/{page.name})" not in readme] == []


@pytest.mark.parametrize("page", ["README.md", "docs/ARCHITECTURE.md"])
def test_every_extra_is_listed(page: str) -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    section = project.partition("[project.optional-dependencies]\n")[2].partition("\n[")[0]
    extras = set(re.findall(r"^(\w+) = ", section, re.MULTILINE)) - {"docs", "dev"}
    text = (ROOT / page).read_text(encoding="utf-8")
    assert {"st", "kenlm"} <= extras
    assert [name for name in sorted(extras) if f"[{name}]" not in text and f"`{name}`" not in text] == []


def messages() -> str:
    """All texts in the source; the values of f-strings are replaced by a line break."""
    found = []
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            texts = [part.value if isinstance(part, ast.Constant) else "\n" for part in parts]
            found.append("".join(text for text in texts if isinstance(text, str)))
    return "\n".join(found)


def test_troubleshooting_quotes_messages_that_exist() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    quoted = [text for row in rows for text in CODE.findall(row)]
    assert len(quoted) > 10
    known = messages()
    assert [text for text in quoted if text not in known and text != os.strerror(errno.ENOSPC)] == []


@pytest.fixture(scope="module")
def known_options() -> set[str]:
    """The flags of every command's `--help`."""
    found = {"--version", "--completion"}
    helps = [[name] for name in commands() if name != "train"] + [["recipe", "new"]]
    for words in helps:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
            cli([*words, "--help"])
        found |= set(OPTION.findall(printed.getvalue()))
    return found


def options_named(text: str) -> set[str]:
    """The options between backticks."""
    return {option for code in CODE.findall(text) for option in OPTION.findall(code)}


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in PAST], ids=lambda page: page.name)
def test_options_exist(page: Path, known_options: set[str]) -> None:
    unknown = options_named(page.read_text(encoding="utf-8")) - known_options - OTHER_PROGRAMS - SCRIPTS
    assert not unknown, f"{page.name} names options that no command has: {', '.join(sorted(unknown))}"


def test_a_wrong_option_is_found(known_options: set[str]) -> None:
    assert options_named("see `--batch_bin 3` and `tympan score --nope`") == {"--batch_bin", "--nope"}
    assert "--batch_bins" in known_options
    assert "--batch_bin" not in known_options


def test_a_wrong_name_is_found() -> None:
    resolve("tympan.training.task.Task.build_model")
    with pytest.raises((AttributeError, ModuleNotFoundError)):
        resolve("tympan.training.task.Tusk")
    with pytest.raises((AttributeError, ModuleNotFoundError)):
        resolve("tympan.nothing.here")
