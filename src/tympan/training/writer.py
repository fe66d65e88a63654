"""Write the output of a run: experiment directory, log, curves. Only rank 0 writes files."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from tympan.models.adapter import SaveStrategy, saved_weights
from tympan.models.weights import released_names
from tympan.training.checkpoint import Identity, save_checkpoint
from tympan.training.nbest import Criterion, average_nbest, is_finite, link_best, remove_others, save_weights
from tympan.training.reporter import EpochReporter, Reporter


class Watcher(Protocol):
    """Something that shows the run: progress bar, TensorBoard, curves, attention plots, Weights & Biases."""

    def step_done(self, part: EpochReporter, *, steps: int, updater: Any) -> None: ...

    def logged(self, part: EpochReporter) -> None: ...

    def epoch_done(self, epoch: int, reporter: Reporter, model: nn.Module) -> None: ...

    def close(self) -> None: ...


class Writer(Protocol):
    """Receives the events of the training loop."""

    def epoch_started(self, epoch: int, max_epoch: int, seconds_left: float | None) -> None: ...

    def step_done(self, part: EpochReporter, *, steps: int, updater: Any) -> None: ...

    def log(self, message: str, part: EpochReporter) -> None: ...

    def checkpoint(self, state: Mapping[str, Any]) -> None: ...

    def epoch_done(self, epoch: int, reporter: Reporter, state: dict[str, Tensor], model: nn.Module) -> None: ...

    def tidy(self, epoch: int, reporter: Reporter) -> None: ...

    def finish(self, reporter: Reporter) -> None: ...

    def close(self) -> None: ...


class ExperimentWriter:
    """Writes the experiment directory with the layout of ESPnet2."""

    def __init__(
        self,
        directory: Path,
        *,
        identity: Identity,
        criteria: Sequence[Criterion],
        nbests: Sequence[int],
        keep_last: int = 1,
        averaging_interval: int = 0,
        save_strategy: SaveStrategy = "all",
        also_train: Sequence[str] = (),
        watchers: Sequence[Watcher] = (),
    ) -> None:
        self.directory = directory
        self.identity = identity
        self.criteria = criteria
        self.nbests = nbests
        self.keep_last = keep_last
        self.averaging_interval = averaging_interval
        self.save_strategy: SaveStrategy = save_strategy
        self.also_train = also_train
        self.watchers = watchers
        self.averaged: list[Path] = []
        """Paths of the averaged models of the finished run."""

    def epoch_started(self, epoch: int, max_epoch: int, seconds_left: float | None) -> None:
        left = "" if seconds_left is None else f". Estimated time to finish: {_clock(seconds_left)}"
        logging.info("%d/%depoch started%s", epoch, max_epoch, left)

    def step_done(self, part: EpochReporter, *, steps: int, updater: Any) -> None:
        for watcher in self.watchers:
            watcher.step_done(part, steps=steps, updater=updater)

    def log(self, message: str, part: EpochReporter) -> None:
        logging.info(message)
        for watcher in self.watchers:
            watcher.logged(part)

    def checkpoint(self, state: Mapping[str, Any]) -> None:
        save_checkpoint(self.directory, state, identity=self.identity)

    def epoch_done(self, epoch: int, reporter: Reporter, state: dict[str, Tensor], model: nn.Module) -> None:
        logging.info(reporter.log_message(epoch))
        for watcher in self.watchers:
            watcher.epoch_done(epoch, reporter, model)
        if not is_finite(state):
            logging.error("epoch %d: the model is not saved, because some of its weights are not finite", epoch)
            return
        weights = saved_weights(state, model, self.save_strategy, also_train=self.also_train)
        save_weights(self.directory / f"{epoch}epoch.pth", released_names(weights, model))
        improved = link_best(self.directory, reporter, epoch, self.criteria)
        if improved:
            logging.info("The best model has been updated: %s", ", ".join(improved))
        else:
            logging.info("There are no improvements in this epoch")

    def tidy(self, epoch: int, reporter: Reporter) -> None:
        if self.averaging_interval > 0 and epoch % self.averaging_interval == 0:
            average_nbest(self.directory, reporter, self.criteria, nbests=self.nbests, till_epoch=epoch)
        removed = remove_others(
            self.directory, reporter, epoch, self.criteria, keep=max(self.nbests), keep_last=self.keep_last
        )
        if removed:
            logging.info("The model files were removed: %s", ", ".join(removed))

    def finish(self, reporter: Reporter) -> None:
        self.averaged = average_nbest(self.directory, reporter, self.criteria, nbests=self.nbests)
        logging.info("The training was finished at %d epochs", max(reporter.stats, default=0))

    def close(self) -> None:
        for watcher in self.watchers:
            watcher.close()


class SilentWriter:
    """The writer of all other ranks: it only logs."""

    def epoch_started(self, epoch: int, max_epoch: int, seconds_left: float | None) -> None:
        return None

    def step_done(self, part: EpochReporter, *, steps: int, updater: Any) -> None:
        return None

    def log(self, message: str, part: EpochReporter) -> None:
        logging.info(message)

    def checkpoint(self, state: Mapping[str, Any]) -> None:
        return None

    def epoch_done(self, epoch: int, reporter: Reporter, state: dict[str, Tensor], model: nn.Module) -> None:
        logging.info(reporter.log_message(epoch))

    def tidy(self, epoch: int, reporter: Reporter) -> None:
        return None

    def finish(self, reporter: Reporter) -> None:
        return None

    def close(self) -> None:
        return None


def _clock(seconds: float) -> str:
    hours, rest = divmod(int(seconds), 3600)
    minutes, seconds = divmod(rest, 60)
    parts = [(hours, "hours"), (minutes, "minutes"), (int(seconds), "seconds")]
    return ", ".join(f"{number} {unit}" for number, unit in parts if number) or "less than a second"
