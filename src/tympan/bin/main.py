"""The `tympan` command: lists the commands and runs one of them."""

from __future__ import annotations

import ast
import errno
import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import tympan
from tympan.errors import UserError

Main = Callable[[Sequence[str] | None], int]

_AGAIN = "What was finished is kept: make room, then run the same command again."
_PERMISSIONS = "You may not read or write there: choose another place, or change its permissions."
_REMEDIES = {
    errno.ENOSPC: _AGAIN,
    errno.EDQUOT: _AGAIN,
    errno.EFBIG: "Files may not grow that large here: raise the limit (ulimit -f), or choose another place.",
    errno.EROFS: "Nothing can be written there: choose another place.",
    errno.EACCES: _PERMISSIONS,
    errno.EPERM: _PERMISSIONS,
    errno.ENOENT: "Check the path: it is not there, or can't be made there.",
    errno.ENAMETOOLONG: "Choose a shorter name.",
    errno.ELOOP: "Its links lead to themselves: name the file itself.",
}

USAGE = """\
usage: tympan COMMAND [options]
       tympan COMMAND --help
       tympan --version
       tympan --completion bash|zsh"""

# Options are read from the command's own help, so that completion is never out of date.
COMPLETION = """\
_tympan() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" command="${{COMP_WORDS[1]}}"
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{commands} --help --version --completion" -- "$word"))
  elif [[ "$word" == -* ]]; then
    local options="$(tympan "$command" --help 2>/dev/null | grep -oE -- '--[a-z0-9_]+' | sort -u)"
    COMPREPLY=($(compgen -W "$options" -- "$word"))
  fi
}}
complete -o default -F _tympan tympan"""


def cli(argv: Sequence[str] | None = None) -> int:
    """Entry point of the console script."""
    args = list(sys.argv[1:] if argv is None else argv)
    if not args or args[0] in ("--help", "-h"):
        return run(lambda rest: _show(_listing()))
    if args[0] == "--version":
        return run(lambda rest: _show(f"tympan {tympan.__version__}"))
    if args[0] == "--completion":
        return run(_completion, args[1:])
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
    except OSError as error:
        message = _system_message(error)
        if message is None:
            raise
        print(f"tympan: error: {message}", file=sys.stderr)
        return 2
    except (MemoryError, RuntimeError) as error:
        from tympan.runtime.memory import is_out_of_memory, out_of_memory

        if not is_out_of_memory(error):
            raise
        print(f"tympan: error: {out_of_memory(error)}", file=sys.stderr)
        return 2


def _system_message(error: OSError) -> str | None:
    """What the user can mend: a full disk, a wrong path. None: it is our fault, or the machine's."""
    # Files are written beside their place and renamed: the second name is the one the user knows.
    name = error.filename2 or error.filename
    place = f"{name}: " if name else ""
    if error.errno in (errno.EISDIR, errno.ENOTDIR, errno.EEXIST):
        return f"{place}{error.strerror}"
    remedy = _REMEDIES.get(error.errno or 0)
    # Which file is missing must be said, or nobody can look for it.
    if remedy is None or (error.errno == errno.ENOENT and not name):
        return None
    return f"{place}{error.strerror}. {remedy}"


def commands() -> dict[str, str]:
    """Every command with the first line of its module's docstring (nothing is imported)."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if path.stem not in ("__init__", "main"):
            docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            found[path.stem] = docstring.partition("\n")[0]
    return found


def _show(text: str) -> int:
    print(text, flush=True)
    return 0


def _completion(shell: Sequence[str] | None) -> int:
    """Print what `eval "$(tympan --completion bash)"` needs."""
    script = COMPLETION.format(commands=" ".join(commands()))
    if list(shell or []) == ["bash"]:
        return _show(script)
    if list(shell or []) == ["zsh"]:
        return _show(f"autoload -U +X bashcompinit && bashcompinit\n{script}")
    raise UserError("--completion wants bash or zsh")


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
