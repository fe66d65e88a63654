"""The training tasks, by name. Each module defines what is specific to one task; the rest is shared."""

from __future__ import annotations

import os
import sys

from tympan.config.registry import Registry, is_import
from tympan.training.task import AnyTask, Finding, Task, Tokens, train_command

__all__ = ["TASKS", "Finding", "Task", "Tokens", "find_task", "train_command"]

TASKS = Registry(
    "task",
    {"asr": "tympan.tasks.asr:AsrTask", "lm": "tympan.tasks.lm:LmTask", "st": "tympan.tasks.st:StTask"},
)


def find_task(name: str) -> AnyTask:
    """The task with this name, or the user's own class: `package.module:MyTask`."""
    if is_import(name) and os.getcwd() not in sys.path and "" not in sys.path:
        # Last, so that a file beside the user's data can't take the name of a package
        sys.path.append(os.getcwd())
    task: AnyTask = TASKS.get_class(name)()
    return task
