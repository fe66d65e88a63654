"""The interface of a task: what differs between tasks. They share the training loop, the launcher and the commands.

Importing this module does not import torch, so that `--help` is fast.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from tympan.config.read import parse_training
from tympan.config.train import TrainConfig
from tympan.errors import UserError
from tympan.runtime.child import module_arguments, own_module_arguments, script_arguments

if TYPE_CHECKING:
    from torch import nn

    from tympan.data.audio import Channel
    from tympan.data.batch import Batches
    from tympan.data.dataset import Preprocess

Config = TypeVar("Config", bound=TrainConfig)


@dataclass(frozen=True)
class Tokens:
    """The token type and the tokens of one text."""

    token_type: str
    tokens: tuple[str, ...]


@dataclass(frozen=True)
class Finding:
    """A problem in the data that is reported as a warning before training."""

    message: str
    """Text after the number of utterances, such as `utterances have an empty transcript`."""
    utterances: Sequence[str]


class Task(Protocol[Config]):
    """A training task. A subclass defines its configuration, data names and model; everything else has a default.

    `tympan train package.module:MyTask` and `MyTask.main()` train it with every option of `TrainConfig`: resuming,
    distributed training, mixed precision, `--help`, `--print_config`. docs/tasks.md has a complete example.
    """

    name: ClassVar[str]
    """Name of the task. It is saved in checkpoints, so that the run of another task can't be resumed by mistake."""
    config_class: type[Config]
    """A frozen dataclass that inherits from `TrainConfig`: its fields are the options of the command."""
    required_data: ClassVar[tuple[str, ...]]
    """Data names that must be given, such as `speech` and `text`. They are also arguments of the model's `forward`."""
    optional_data: ClassVar[tuple[str, ...]] = ()

    def build_model(self, config: Config) -> nn.Module:
        """Build the model from a completed configuration. Its `forward` takes tensors by name and returns a `Loss`."""
        ...

    def more_data(self, config: Config) -> tuple[str, ...]:
        """Return the data names that the options of `config` need besides `required_data`."""
        return ()

    def complete(self, config: Config) -> Config:
        """Return the configuration as it is saved, which includes the content of files that decoding needs."""
        return config

    def preprocess(self, config: Config, *, sample_rate: int | None, is_augmented: bool) -> Preprocess | None:
        """Return a function that converts the values read for an utterance to arrays, or None to use them as they are.

        `is_augmented` is true for training data. Random choices may depend only on the seed, the utterance and the
        epoch.
        """
        return None

    def sample_rate(self, config: Config) -> int | None:
        """Return the sample rate that all recordings must have, or None to use that of the first recording."""
        return None

    def channel(self, config: Config) -> Channel | None:
        """Return the channel to read from audio files with several channels, `mean`, or None for all channels."""
        return None

    def tokens(self, config: Config) -> dict[str, Tokens]:
        """Return data name -> tokens of this text, from a completed configuration.

        A checkpoint can be resumed only with the same tokens.
        """
        return {}

    def for_statistics(self, config: Config) -> Config:
        """Return the configuration for `--collect_stats`, without parts that need the statistics."""
        return config

    def files(self, config: Config) -> list[str | None]:
        """Return files named by the options of the task that affect the result. The manifest lists their digests."""
        return []

    def findings(self, config: Config, *, model: nn.Module, batches: Batches) -> Iterable[Finding]:
        """Return problems to warn about before training starts. Raise UserError to stop the run."""
        return ()

    @classmethod
    def main(cls, argv: Sequence[str] | None = None) -> int:
        """Run the training command of this task. A UserError is printed as one message, with exit code 2."""
        from tympan.runtime.entry import run

        return run(lambda arguments: train_command(cls(), arguments), argv)


AnyTask = Task[Any]


def train_command(task: AnyTask, argv: Sequence[str] | None = None, *, prog: str | None = None) -> int:
    """Parse the options of a task and run training."""
    check_task(type(task))
    description = (type(task).__doc__ or "").partition("\n")[0]
    config = parse_training(task.config_class, argv, prog=prog or f"tympan train {task.name}", description=description)
    from tympan.training.session import run_training

    return run_training(task, config, argv=argv)


def check_task(task_class: type[Any]) -> None:
    """Raise UserError if the class is not a task or if a required attribute is missing."""
    where = f"{task_class.__module__}:{task_class.__qualname__}"
    if Task not in task_class.__mro__:
        raise UserError(f"{where} is not a task: a task inherits from tympan.tasks.Task (docs/tasks.md)")
    missing = [name for name in ("name", "config_class", "required_data") if not hasattr(task_class, name)]
    missing += ["build_model"] if task_class.build_model is Task.build_model else []
    if missing:
        raise UserError(f"the task {where} does not define {', '.join(missing)} (docs/tasks.md has a complete example)")


def check_data_names(task: AnyTask, config: TrainConfig) -> None:
    """Raise UserError if data that the task needs is missing, or if a data name is unknown."""
    required = (*task.required_data, *task.more_data(config))
    known = (*required, *task.optional_data)
    for side in ("train", "valid"):
        triples = dict(data_of(config))[side]
        names = [name for _, name, _ in triples]
        missing = [name for name in required if name not in names]
        if missing:
            is_named = missing[0] in task.more_data(config)
            which = " (which aux_ctc_tasks or another option names)" if is_named else ""
            example = f"dump/{side}/{missing[0]},{missing[0]},{'sound' if missing[0] == 'speech' else 'text'}"
            raise UserError(
                f"--{side}_data_path_and_name_and_type is needed for {', '.join(missing)}{which}: PATH,NAME,TYPE, "
                f"such as {example}" + (f"; found {', '.join(names)}" if names else "")
            )
        unknown = [name for name in names if name not in known]
        if unknown and not config.allow_variable_data_keys:
            raise UserError(
                f"--{side}_data_path_and_name_and_type: the task {task.name} does not know the data name "
                f"'{unknown[0]}'; it knows {', '.join(known)}. --allow_variable_data_keys true accepts other names"
            )


def data_of(config: TrainConfig) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """Yield ("train" or "valid", its data files)."""
    yield "train", config.train_data_path_and_name_and_type
    yield "valid", config.valid_data_path_and_name_and_type


def start_command(task: AnyTask) -> list[str]:
    """Return the Python arguments that run the command of this task in a worker process."""
    module, name = type(task).__module__, type(task).__qualname__
    if module == "__main__":
        # A script that calls MyTask.main(): run it again in the same way, by file or with -m
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        return script_arguments(sys.argv[0]) if spec is None else own_module_arguments(spec.name)
    return module_arguments("tympan.bin.train", [f"{module}:{name}"])
