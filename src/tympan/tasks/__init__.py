"""The kinds of training, by name. Each module here states what is particular about one; the rest is common."""

from __future__ import annotations

from tympan.config.registry import Registry
from tympan.training.task import AnyTask, Finding, Task, Tokens, check_task, train_command

__all__ = ["TASKS", "Finding", "Task", "Tokens", "find_task", "train_command"]

TASKS = Registry(
    "task",
    {"asr": "tympan.tasks.asr:AsrTask", "lm": "tympan.tasks.lm:LmTask", "st": "tympan.tasks.st:StTask"},
)


def find_task(name: str) -> AnyTask:
    """The task of a name, or a class of the user's own: `package.module:MyTask`."""
    found = TASKS.get_class(name)
    check_task(found)
    task: AnyTask = found()
    return task
