"""The model of a training run before its first step: built, loaded, frozen, with adapters."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from torch import nn

from tympan.config.choices import ADAPTERS
from tympan.config.train import TrainConfig
from tympan.models.adapter import Adapter
from tympan.models.init_param import init_from
from tympan.models.initialize import load_pretrained_parts
from tympan.nn.batch_norm import keep_statistics
from tympan.training.optimizers import freeze
from tympan.training.task import AnyTask
from tympan.training.update import trainable


def prepared_model(task: AnyTask, config: TrainConfig, *, is_pretrained: bool = True) -> nn.Module:
    """The model with its first weights and adapters, and with frozen parts.

    `is_pretrained` false leaves out the files of pretrained parts, and files of --init_param that do not exist.
    """
    model = task.build_model(config)
    _load_weights(model, config, is_pretrained=is_pretrained)
    frozen = freeze(model, config.freeze_param)
    if frozen:
        logging.info("%d weights are frozen: %s", len(frozen), ", ".join(config.freeze_param))
    if config.use_adapter:
        adapter: Adapter = ADAPTERS.build(config.adapter, config.adapter_conf)
        names = adapter.add_to(model, freezes=not config.freeze_param, also_train=config.also_train)
        logging.info("%d layers have an adapter (%s): %s", len(names), config.adapter, ", ".join(names))
    norms = keep_statistics(model)
    if norms:
        logging.info("%d frozen batch-norm layers keep their statistics", len(norms))
    return model


def _load_weights(model: nn.Module, config: TrainConfig, *, is_pretrained: bool) -> None:
    """Load the weights of --init_param, and those of pretrained parts that they lack."""

    entries = config.init_param if is_pretrained else _existing(config.init_param)

    def load_given() -> set[str]:
        found = (init_from(model, entry, ignore_mismatch=config.ignore_init_mismatch) for entry in entries)
        return {name for names in found for name in names}

    loaded = load_given()
    if is_pretrained and load_pretrained_parts(model, loaded=loaded) and loaded:
        load_given()  # these are more important


def _existing(entries: Sequence[str]) -> list[str]:
    """The entries of --init_param whose file exists."""
    found = {entry: Path(entry.partition(":")[0]).exists() for entry in entries}
    for entry in (entry for entry, exists in found.items() if not exists):
        logging.warning("--init_param %s: no such file; a dry run without data goes on without it", entry)
    return [entry for entry, exists in found.items() if exists]


def report_size(model: nn.Module) -> None:
    """Log the number of parameters, and how many are trained."""
    number = sum(parameter.numel() for parameter in model.parameters())
    learning = sum(parameter.numel() for _, parameter in trainable(model))
    share = 100 * learning / max(number, 1)
    logging.info("model: %s parameters, %s of them trainable (%.2f %%)", f"{number:,}", f"{learning:,}", share)
    logging.debug("%s", model)
