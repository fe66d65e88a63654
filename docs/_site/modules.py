"""The API reference: a page per package that names its modules for mkdocstrings, which reads the source."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "tympan"


def pages() -> dict[str, str]:
    """Markdown by file name: an index, the Python interface, and one page per package."""
    packages = sorted(path.parent for path in PACKAGE.glob("*/__init__.py"))
    found = {f"{package.name}.md": package_page(package) for package in packages}
    rows = [
        f"| [`tympan.{package.name}`]({package.name}.md) | {_purpose(package / '__init__.py')} |"
        for package in packages
    ]
    index = [
        "# API reference",
        "",
        "[`tympan`](tympan.md) is the interface for scripts and notebooks; [Python](../python.md) introduces it.",
        "The other packages are listed from the source. [Interfaces](../interfaces.md) describes the objects that",
        "pass between them.",
        "",
        "| package | purpose |",
        "|---|---|",
        *rows,
        "",
    ]
    front = "# tympan\n\n::: tympan.api\n\n::: tympan.errors\n"
    return {"index.md": "\n".join(index), "tympan.md": front, **found}


def package_page(package: Path) -> str:
    """Every module of a package that is not empty."""
    lines = [f"# tympan.{package.name}", "", _purpose(package / "__init__.py"), ""]
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        if "egs" in parts or path == package / "__init__.py":
            continue
        if parts[-1] == "__init__":
            parts = parts[:-1]
        lines += [f"::: {'.'.join(parts)}", ""]
    return "\n".join(lines)


def _purpose(path: Path) -> str:
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]
