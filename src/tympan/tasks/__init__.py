"""The training tasks by name. Each module here defines one task; everything else is shared."""

from __future__ import annotations

from tympan.config.registry import Registry
from tympan.training.task import AnyTask, Finding, Task, Tokens, check_task, train_command

__all__ = ["TASKS", "Finding", "Task", "Tokens", "find_task", "train_command"]

TASKS = Registry(
    "task",
    {"asr": "tympan.tasks.asr:AsrTask", "lm": "tympan.tasks.lm:LmTask", "st": "tympan.tasks.st:StTask"},
)


def find_task(name: str) -> AnyTask:
    """Return the task with this name, or a user-defined class given as `package.module:MyTask`."""
    found = TASKS.get_class(name)
    check_task(found)
    task: AnyTask = found()
    return task
