"""Train any task: a registered one such as asr, or your own as package.module:MyTask."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tympan.errors import UserError
from tympan.tasks import TASKS, find_task, train_command


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0].startswith("-"):
        if arguments[:1] == ["--help"]:
            print(_usage())
            raise SystemExit(0)
        raise UserError(f"the first argument must be the task.\n{_usage()}")
    task = find_task(arguments[0])
    return train_command(task, arguments[1:], prog=f"tympan train {arguments[0]}")


def _usage() -> str:
    return (
        "usage: tympan train TASK [options]\n"
        "       tympan train TASK --help\n"
        f"TASK is one of {', '.join(TASKS.names())}, or package.module:Class, a task of your own (docs/tasks.md)"
    )


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
