"""MkDocs hooks: add pages from outside of docs/ and the generated reference, and convert GitHub's Markdown."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

import commands
import modules
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "benchmarks/RESULTS.md": "results/speed.md",
    "benchmarks/NOTES.md": "results/speed-notes.md",
    "egs/aishell/asr1/RESULTS.md": "results/aishell.md",
    "egs/an4/asr1/RESULTS.md": "results/an4.md",
}
"""Page of the site by file of the repository."""

INSIDE = {page: file for file, page in OUTSIDE.items()}
LINK = re.compile(r"(!?)\[([^\]\n]*)\]\(([^)\s#:]+)(#[^)\s]*)?\)")
LIST = re.compile(r" *([-*]|\d+\.) ")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the repository's other pages and the generated ones."""
    for file, page in OUTSIDE.items():
        if (ROOT / file).is_file():
            files.append(File.generated(config, page, abs_src_path=str(ROOT / file)))
    for folder, made in (("commands", commands.pages()), ("api", modules.pages())):
        for name, text in made.items():
            files.append(File.generated(config, f"{folder}/{name}", content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links between files of the repository become links between pages; lists begin after an empty line."""
    source = page.file.src_uri
    here = PurePosixPath(INSIDE.get(source, f"docs/{source}"))
    return _separate_lists(LINK.sub(lambda found: _relink(found, here, source, files), markdown))


def _relink(found: re.Match[str], here: PurePosixPath, source: str, files: Files) -> str:
    mark, text, target, anchor = found.groups()
    file = os.path.normpath(here.parent / target)
    page = OUTSIDE.get(file, file.removeprefix("docs/"))
    if files.get_file_from_path(page) is not None:
        relative = os.path.relpath(page, PurePosixPath(source).parent)
        return f"{mark}[{text}]({relative}{anchor or ''})"
    # A file that is not part of the site, such as a script, becomes plain text. A missing file stays a broken link.
    return text if (ROOT / file).exists() else found[0]


def _separate_lists(markdown: str) -> str:
    lines: list[str] = []
    is_code = False
    for line in markdown.split("\n"):
        before = lines[-1] if lines else ""
        is_code ^= line.lstrip().startswith("```")
        begins = LIST.match(line) and before.strip() and not before.startswith((" ", "\t")) and not LIST.match(before)
        lines += ["", line] if begins and not is_code else [line]
    return "\n".join(lines)
