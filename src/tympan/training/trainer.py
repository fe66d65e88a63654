"""The training loop, shared by all tasks, by one process or many, and by new and resumed runs."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tympan.config.train import LoopOptions
from tympan.data.batch import Batch, Batches
from tympan.errors import UserError
from tympan.runtime.comm import Comm
from tympan.runtime.seed import seed_step, set_all_seeds
from tympan.training.checkpoint import Position
from tympan.training.nbest import is_finite
from tympan.training.reporter import Done, EpochReporter, Reporter
from tympan.training.schedulers import moments
from tympan.training.update import Updater, counts_of, stats_of
from tympan.training.writer import Writer


class Stopped(Exception):
    """The run was stopped by a signal and has saved a checkpoint."""


class Trainer:
    """Trains, validates and saves. Every rank runs the same code; only the writer differs."""

    def __init__(
        self,
        updater: Updater,
        *,
        train_data: Batches,
        valid_data: Batches,
        comm: Comm,
        writer: Writer,
        options: LoopOptions,
        seed: int = 0,
        is_stopping: Callable[[], bool] = lambda: False,
        start_epoch: Callable[[int], None] = lambda epoch: None,
    ) -> None:
        """`start_epoch` is called with the number of each epoch before it is trained, also after a resume."""
        self.updater = updater
        self.train_data = train_data
        self.valid_data = valid_data
        self.comm = comm
        self.writer = writer
        self.options = options
        self.seed = seed
        self.is_stopping = is_stopping
        self.start_epoch = start_epoch
        self.reporter = Reporter()
        self.position = Position(epoch=1, step=0)
        self._resumed_part: EpochReporter | None = None
        self._saved_at = time.monotonic()
        self._is_finite = True

    def fit(self) -> None:
        """Train from the current position to the last epoch, then write the averaged models."""
        start = time.perf_counter()
        first = self.position.epoch
        while self.position.epoch <= self.options.max_epoch and not self._is_early():
            epoch = self.position.epoch
            self.writer.epoch_started(
                epoch, self.options.max_epoch, _time_left(start, epoch - first, self.options.max_epoch - epoch + 1)
            )
            self.train_epoch()
            self.validate()
            self.finish_epoch()
        self.comm.barrier()
        self.writer.finish(self.reporter)

    def check_result(self) -> None:
        """Raise UserError if the last validation loss or weights are not finite: a run that diverged has failed.

        Weights can be NaN with a finite loss: those of tokens or positions that the validation data does not have.
        """
        last = self.position.epoch - 1
        if self.options.no_forward_run or not self.reporter.has("valid", "loss", last):
            return
        value = self.reporter.get("valid", "loss", last)
        if math.isfinite(value) and not self._is_finite:
            raise UserError(
                f"some weights of epoch {last}, the last one, are not finite, so its model was not saved. "
                "Try other values of optim_conf (a lower lr, a larger eps) or scheduler_conf (a longer warmup)"
            )
        if not math.isfinite(value):
            finite = [epoch for epoch, loss in self.reporter.ranking("valid", "loss", "min") if math.isfinite(loss)]
            kept = f"the best earlier epoch is {finite[0]}" if finite else "no epoch has a usable model"
            raise UserError(
                f"the validation loss of epoch {last}, the last one, is {value}; {kept}. "
                "Try other values of optim_conf (a lower lr) or scheduler_conf (a longer warmup), and check the "
                "validation data (empty, silent or very long audio)"
            )

    def train_epoch(self) -> None:
        """Train the rest of the current epoch, from the current step."""
        epoch, start = self.position.epoch, self.position.step
        self.start_epoch(epoch)
        steps = self.train_data.num_steps(epoch)
        set_all_seeds(self.seed + epoch)
        part, self._resumed_part = self._resumed_part or self._part("train", done=start), None
        interval = self.options.log_interval or max(steps // 20, 10)
        self.updater.parallel.model.train()
        batches = self._seeded(epoch, start) if start < steps else iter(())
        for group in _groups(start, steps, self.options.accum_grad):
            with part.measure("train_time"):
                self._learn(batches, number=len(group), part=part)
            self.position = Position(epoch, group.stop)
            self.writer.step_done(part, steps=steps, updater=self.updater)
            if _crosses(group, interval):
                self.writer.log(part.log_message(), part)
            self._save_if_due(group, part)
        self.reporter.finish(part)

    def validate(self) -> None:
        """Compute the statistics of the validation data with the current weights."""
        epoch = self.position.epoch
        part = self._part("valid")
        module = self.updater.parallel.module
        module.eval()
        with torch.no_grad():
            for batch in self.valid_data.build_iter(epoch):
                part.batches += 1
                if not self.options.no_forward_run:
                    loss, share = self.updater.forward(batch)
                    part.register(stats_of(loss, loss.value, counts_of(loss), share=share))
        module.train()
        self.reporter.finish(part)

    def finish_epoch(self) -> None:
        """Step the scheduler and write the files of this epoch.

        The checkpoint is written last, so that a run killed before it does all of this again.
        """
        epoch = self.position.epoch
        self._check_best(epoch)
        self._step_schedule(epoch)
        model_state = self.updater.parallel.full_model_state()
        self._is_finite = is_finite(model_state)
        self.writer.epoch_done(epoch, self.reporter, model_state, self.updater.parallel.module)
        self.position = Position(epoch + 1, 0)
        self.writer.checkpoint(self._state(model_state, part=None))
        self._saved_at = time.monotonic()
        self.writer.tidy(epoch, self.reporter)

    def done(self) -> Done:
        """Return the progress so far."""
        epochs = self.position.epoch - 1
        return Done(epochs, self.reporter.batches_until("train", epochs) + self.position.step)

    def save(self, part: EpochReporter) -> None:
        """Save a checkpoint within the epoch."""
        self.writer.checkpoint(self._state(self.updater.parallel.full_model_state(), part=part.state_dict()))
        self._saved_at = time.monotonic()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore state and position from a checkpoint."""
        self.updater.parallel.load_model_state(state["model"])
        self._is_finite = is_finite(state["model"])
        self.updater.load_state_dict(state)
        self.reporter.load_state_dict(state["reporter"])
        self.position = Position(**state["position"])
        if self.position.epoch > max(self.reporter.stats, default=0) + 1:
            raise ValueError(f"epoch {self.position.epoch} follows no epoch with statistics")
        self._resumed_part = None
        if state["part"] is not None:
            self._resumed_part = self._part("train", done=self.position.step)
            self._resumed_part.load_state_dict(state["part"])

    def _save_if_due(self, group: range, part: EpochReporter) -> None:
        """Save a checkpoint where an interval ends or the run is asked to stop. All ranks decide the same."""
        minutes = self.options.save_interval_minutes
        is_old = minutes is not None and time.monotonic() - self._saved_at >= 60 * minutes
        is_asked = self.comm.any(is_old or self.is_stopping())
        if is_asked or _crosses(group, self.options.save_interval_steps):
            self.save(part)
        if is_asked and self.comm.any(self.is_stopping()):
            raise Stopped

    def _seeded(self, epoch: int, start: int) -> Iterator[Batch]:
        """Yield batches. The random generators are seeded after each fetch, since a data loader uses them too."""
        for step, batch in enumerate(self.train_data.build_iter(epoch, start), start):
            seed_step(self.seed + epoch, step=step, rank=self.comm.rank)
            yield batch

    def _part(self, phase: str, *, done: int = 0) -> EpochReporter:
        epoch = self.position.epoch
        before = self.reporter.batches_until(phase, epoch - 1)
        return EpochReporter(phase, epoch, comm=self.comm, done=done, batches_before=before)

    def _learn(self, batches: Iterator[Batch], *, number: int, part: EpochReporter) -> None:
        if not self.options.no_forward_run:
            self.updater.learn(batches, number=number, reporter=part)
            return
        for _ in range(number):
            with part.measure("iter_time"):
                next(batches)
            part.batches += 1

    def _step_schedule(self, epoch: int) -> None:
        scheduler = self.updater.scheduler
        if scheduler is None or self.options.no_forward_run:
            return
        if "valid" in moments(scheduler):
            phase, name = self.options.val_scheduler_criterion
            self._require(f"--val_scheduler_criterion {phase} {name}", phase, name, epoch)
            scheduler.step(self.reporter.get(phase, name, epoch))
        elif "epoch" in moments(scheduler):
            scheduler.step()

    def _is_early(self) -> bool:
        """Return whether the criterion has not improved for more than `patience` epochs."""
        last = self.position.epoch - 1
        phase, name, mode = self.options.early_stopping_criterion
        if self.options.patience is None or last not in self.reporter.stats or self.options.no_forward_run:
            return False
        self._require(f"--early_stopping_criterion {phase} {name} {mode}", phase, name, last)
        waited = last - self.reporter.ranking(phase, name, mode)[0][0]
        if waited > self.options.patience:
            logging.info(
                "[Early stopping] %s.%s has not been improved %d epochs continuously. "
                "The training was stopped at %depoch",
                phase, name, waited, last,
            )  # fmt: skip
        return waited > self.options.patience

    def _check_best(self, epoch: int) -> None:
        """UserError if no criterion of the best models has a value."""
        criteria = self.options.best_model_criterion
        has_any = any(self.reporter.has(phase, name, epoch) for phase, name, _ in criteria)
        if criteria and not has_any and not self.options.no_forward_run:
            phase, name, mode = criteria[0]
            self._require(f"--best_model_criterion {phase} {name} {mode}", phase, name, epoch)

    def _require(self, option: str, phase: str, name: str, epoch: int) -> None:
        """UserError if an epoch lacks a statistic. Those of the training phase are not known before the first epoch."""
        if not self.reporter.has(phase, name, epoch):
            known = ", ".join(sorted(self.reporter.stats[epoch].get(phase, {})))
            raise UserError(f"{option}: epoch {epoch} has no statistic {phase}.{name}; {phase} has {known}")

    def _state(self, model_state: dict[str, torch.Tensor], *, part: dict[str, Any] | None) -> dict[str, Any]:
        return {
            "model": model_state,
            **self.updater.state_dict(),
            "reporter": self.reporter.state_dict(),
            "position": {"epoch": self.position.epoch, "step": self.position.step},
            "part": part,
        }


def _groups(start: int, steps: int, size: int) -> Iterator[range]:
    """Yield the indices of the batches of each update: `size` batches, or fewer at the end of the epoch."""
    for first in range(start, steps, size):
        yield range(first, min(first + size, steps))


def _crosses(group: range, interval: int | None) -> bool:
    """Return whether a multiple of `interval` is reached in this group of batches.

    This depends only on the position, not on a counter, so a resumed run gives the same result.
    """
    return interval is not None and group.stop // interval > group.start // interval


def _time_left(start: float, done: int, left: int) -> float | None:
    return (time.perf_counter() - start) / done * left if done else None
