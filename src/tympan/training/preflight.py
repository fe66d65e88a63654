"""Checks before the first update for mistakes that would stop a run late or spoil its result silently."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR, ReduceLROnPlateau

from tympan.config.option import options_of
from tympan.config.registry import is_import
from tympan.config.train import LoopOptions, TrainConfig
from tympan.errors import UserError
from tympan.runtime.memory import is_out_of_memory
from tympan.runtime.precision import Precision
from tympan.training.schedulers import moments
from tympan.training.trainer import Trainer

_MISTAKES = (ValueError, TypeError, ArithmeticError, AssertionError, LookupError, RuntimeError)


def check_precision_and_shapes(config: TrainConfig, precision: Precision) -> None:
    """UserError for a precision that can't be sharded, and for compilation without fixed shapes."""
    if config.fsdp and precision.updates != "plain":
        raise UserError(
            f"--fsdp true can't be used with --train_dtype {config.train_dtype}: use --train_dtype float32 with "
            "--use_amp true instead"
        )
    if config.compile and config.batch_type != "bucket":
        raise UserError(
            f"--compile true compiles the model for every new shape, and with --batch_type {config.batch_type} almost "
            "every batch has a new shape. Use --batch_type bucket"
        )


def check_run(trainer: Trainer) -> None:
    """Raise UserError if the schedule is too short or if validation does not measure a criterion."""
    if trainer.options.no_forward_run or trainer.position.epoch > trainer.options.max_epoch:
        return
    _check_schedule(trainer)
    check_criteria(trainer.options, {"loss", *_measured(trainer)}, scheduler=trainer.updater.scheduler)


@contextmanager
def one_message(config: TrainConfig, *, is_own_task: bool) -> Iterator[None]:
    """Turn what a model raises in its first batch into one message, because values that don't fit together cause it.

    Errors in a user's own classes keep their traceback.
    """
    try:
        yield
    except _MISTAKES as error:
        if is_out_of_memory(error) or is_own_task or _has_own_classes(config):
            raise
        logging.debug("the first batch failed", exc_info=True)
        raise UserError(_does_not_fit(config, error)) from error


def _has_own_classes(config: TrainConfig) -> bool:
    """Return whether the configuration names a class of the user, whose errors need their traceback."""
    names = [name for name, item in options_of(type(config)).items() if item.extra.registry is not None]
    return any(isinstance(value := getattr(config, name), str) and is_import(value) for name in names)


def _does_not_fit(config: TrainConfig, error: Exception) -> str:
    """The error of a model whose values are all within their ranges, with all values that are not the default."""
    given = []
    for name, item in options_of(type(config)).items():
        if item.extra.conf_of is None or name in ("optim_conf", "scheduler_conf"):
            continue
        option, chosen = options_of(type(config))[item.extra.conf_of], getattr(config, item.extra.conf_of)
        registry = option.extra.registry
        if chosen is None or registry is None:
            continue
        defaults = {key: parameter.default for key, parameter in registry.parameters(chosen).items()}
        keys = [f"{key}={value}" for key, value in getattr(config, name).items() if value != defaults.get(key)]
        if keys:
            given.append(f"{name} {', '.join(keys)}")
        elif chosen != option.default:
            given.append(f"{option.name} {chosen}")
    for name in ("train_dtype", "use_amp", "compile"):
        if (value := getattr(config, name)) != options_of(type(config))[name].default:
            given.append(f"{name} {str(value).lower() if isinstance(value, bool) else value}")
    said = (str(error) or type(error).__name__).splitlines()[0]
    return (
        f"the model can't process the first batch: {type(error).__name__}: {said}. Some of these values probably do "
        f"not fit together: {'; '.join(given)} (--log_level DEBUG shows where it failed)"
    )


def _check_schedule(trainer: Trainer) -> None:
    """Check the number of steps of OneCycleLR, the only scheduler that fails after its last step."""
    scheduler, options = trainer.updater.scheduler, trainer.options
    if not isinstance(scheduler, OneCycleLR):
        return
    first = trainer.position
    batches = [trainer.train_data.num_steps(epoch) for epoch in range(first.epoch, options.max_epoch + 1)]
    batches[0] -= first.step
    needed = scheduler.last_epoch + sum(-(-number // options.accum_grad) for number in batches)
    if needed > scheduler.total_steps:
        raise UserError(
            f"scheduler_conf: onecyclelr ends too early: total_steps is {scheduler.total_steps}, but "
            f"{options.max_epoch} epochs have {needed} updates. "
            f"Use --scheduler_conf total_steps={needed} or a smaller --max_epoch"
        )


def check_criteria(options: LoopOptions, names: set[str], *, scheduler: LRScheduler | ReduceLROnPlateau | None) -> None:
    """UserError if validation does not measure what chooses models. `names` are the statistics that it measures."""

    def is_missing(phase: str, name: str) -> bool:
        return phase == "valid" and name not in names

    found = f"it reports {', '.join(f'valid.{name}' for name in sorted(names))}"
    needed = []
    if scheduler is not None and "valid" in moments(scheduler):
        needed.append(("val_scheduler_criterion", options.val_scheduler_criterion))
    if options.patience is not None:
        needed.append(("early_stopping_criterion", options.early_stopping_criterion[:2]))
    for option, (phase, name) in needed:
        if is_missing(phase, name):
            raise UserError(f"--{option} {phase} {name}: the model does not report {phase}.{name}; {found}")
    missing = [f"{phase}.{name}" for phase, name, _ in options.best_model_criterion if is_missing(phase, name)]
    if missing and len(missing) == len(options.best_model_criterion):
        raise UserError(
            f"--best_model_criterion: the model does not report {' or '.join(missing)}, so no best model would be "
            f"kept; {found}"
        )
    if missing:
        logging.info("no best models are kept by %s, which the model does not report; %s", ", ".join(missing), found)


def _measured(trainer: Trainer) -> list[str]:
    """Return the names of the statistics of one validation batch."""
    module = trainer.updater.parallel.module
    module.eval()
    with torch.no_grad():
        for batch in trainer.valid_data.build_iter(trainer.position.epoch):
            return list(trainer.updater.forward(batch)[0].stats)
    raise UserError("the validation data has no batches, so the best model can't be chosen")
