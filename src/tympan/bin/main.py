"""The `tympan` command: lists the commands and runs one of them."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import tympan
from tympan.errors import UserError

Main = Callable[[Sequence[str] | None], int]

USAGE = "usage: tympan COMMAND [options]      tympan COMMAND --help      tympan --version"


def cli(argv: Sequence[str] | None = None) -> int:
    """Entry point of the console script."""
    args = list(sys.argv[1:] if argv is None else argv)
    if not args or args[0] in ("--help", "-h"):
        print(_listing())
        return 0
    if args[0] == "--version":
        print(f"tympan {tympan.__version__}")
        return 0
    return run(lambda rest: _command(args[0])(rest), args[1:])


def run(main: Main, argv: Sequence[str] | None = None) -> int:
    """Run a command's main: a user's mistake becomes one message on stderr and exit code 2."""
    try:
        return main(argv)
    except UserError as error:
        print(f"tympan: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("tympan: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 141


def commands() -> dict[str, str]:
    """Every command with the first line of its module's docstring (nothing is imported)."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if path.stem not in ("__init__", "main"):
            docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            found[path.stem] = docstring.partition("\n")[0]
    return found


def _command(name: str) -> Main:
    known = commands()
    if name not in known:
        import difflib

        near = difflib.get_close_matches(name.replace("-", "_"), known, n=1)
        hint = f" Did you mean '{near[0]}'?" if near else " 'tympan' alone lists the commands."
        raise UserError(f"there is no command '{name}'.{hint}")
    main: Main = importlib.import_module(f"tympan.bin.{name}").main
    return main


def _listing() -> str:
    known = commands()
    width = max(map(len, known), default=0)
    lines = [f"  {name:<{width}}  {purpose}" for name, purpose in known.items()]
    return "\n".join([USAGE, "", "commands:", *lines])
