"""Watchers of a run: the progress bar, Weights & Biases, and a function that builds the configured watchers."""

from __future__ import annotations

import logging
import secrets
import sys
import time
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from tympan.config.train import TrainConfig
from tympan.data.batch import Batches
from tympan.errors import UserError
from tympan.runtime.atomic import atomic_write
from tympan.runtime.packages import import_optional
from tympan.training.attention_plots import AttentionPlots
from tympan.training.curves import Curves, Quiet, TensorBoard
from tympan.training.reporter import Done, EpochReporter, Reporter
from tympan.training.writer import Watcher

FRAMES_PER_SECOND = 100.0
"""Frame rate of stored features. The frame shift is 10 ms in Kaldi and in every recipe here."""
REFRESH_S = 2.0
"""Minimum time between two updates of the values in the progress bar, since reading them from a device is slow."""
RUN_ID = Path("wandb", "run_id")
"""File in the experiment directory with the id of the wandb run, so that a resumed run continues it."""


def build_watchers(
    config: TrainConfig,
    directory: Path,
    valid: Batches,
    *,
    device: torch.device,
    processes: int,
    is_resumed: bool,
    done: Done,
) -> list[Watcher]:
    """Build the progress bar if there is a terminal, and the watchers that the options enable."""
    watchers: list[Watcher] = []
    has_speech = "speech" in valid.names
    if ProgressBar.is_wanted():
        rate = (valid.sample_rate or FRAMES_PER_SECOND) if has_speech else None
        watchers.append(ProgressBar(frames_per_second=rate, processes=processes))
    if config.use_matplotlib:
        watchers.append(Curves(directory / "images"))
    if config.use_tensorboard:
        watchers.append(TensorBoard(directory / "tensorboard", done=done if is_resumed else None))
    if config.num_att_plot > 0 and config.fsdp and processes > 1:
        logging.warning("--fsdp true: attention is not plotted, because no process has the whole model")
    elif config.num_att_plot > 0 and has_speech:
        watchers.append(AttentionPlots(directory / "att_ws", valid.examples(config.num_att_plot), device=device))
    if config.use_wandb:
        watchers.append(
            WeightsAndBiases(
                directory=directory,
                config={item.name: getattr(config, item.name) for item in fields(config)},
                id=config.wandb_id,
                is_resumed=is_resumed,
                project=config.wandb_project or "tympan",
                entity=config.wandb_entity,
                name=config.wandb_name or directory.resolve().name,
                allow_val_change=config.wandb_allow_val_change,
            )
        )
    return watchers


class ProgressBar:
    """One progress bar per epoch. `frames_per_second` converts the number of frames to seconds of audio."""

    def __init__(self, *, frames_per_second: float | None, processes: int = 1) -> None:
        self.frames_per_second = frames_per_second
        self.processes = processes
        self._bar: Any = None
        self._epoch = 0
        self._since = (0.0, 0)

    @staticmethod
    def is_wanted() -> bool:
        return sys.stderr.isatty()

    def step_done(self, part: EpochReporter, *, steps: int, updater: Any) -> None:
        if self._bar is None or self._epoch != part.epoch:
            self.close()
            self._epoch = part.epoch
            self._since = (time.perf_counter(), part.frames)
            self._bar = tqdm(
                total=steps, initial=part.batches - 1, desc=f"epoch {part.epoch}", unit="batch", leave=False
            )
        self._bar.update(part.batches - self._bar.n)
        start, frames = self._since
        elapsed = time.perf_counter() - start
        if elapsed >= REFRESH_S:
            self._bar.set_postfix_str(self._values(part, (part.frames - frames) / elapsed, updater), refresh=True)
            self._since = (time.perf_counter(), part.frames)

    def logged(self, part: EpochReporter) -> None:
        return None

    def epoch_done(self, epoch: int, reporter: Reporter, model: nn.Module) -> None:
        self.close()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _values(self, part: EpochReporter, speed: float, updater: Any) -> str:
        means = part.local_means() or part.last_window
        shown = [f"{name} {means[name]:.3f}" for name in ("loss", "acc") if name in means]
        shown.append(f"lr {updater.learning_rates()[0]:.2e}")
        if self.frames_per_second:
            shown.append(f"{speed * self.processes / self.frames_per_second:.1f} audio s/s")
        return ", ".join(shown)


class WeightsAndBiases(Quiet):
    """Logs `train/*` and `valid/*` per epoch, and `by_batch/*` per batch."""

    def __init__(
        self, *, directory: Path, config: Mapping[str, Any], id: str | None, is_resumed: bool, **options: Any
    ) -> None:
        """`options` are passed to `wandb.init`. If `id` is None, a resumed run uses the id it had before."""
        wandb = import_optional("wandb", "--use_wandb true")
        note = directory / RUN_ID
        if id is None:
            id = note.read_text(encoding="utf-8").strip() if is_resumed and note.is_file() else secrets.token_hex(4)
        try:
            self.run = wandb.init(dir=str(directory), config=dict(config), id=id, resume="allow", **options)
        except wandb.errors.Error as error:
            raise UserError(
                f"--use_wandb true: wandb.init failed: {error}. To store an API key, run `wandb login`. To write local "
                "files and upload them later with `wandb sync`, set the environment variable WANDB_MODE=offline"
            ) from error
        with atomic_write(note) as stream:
            stream.write(f"{id}\n")
        # wandb's own step counter would count the batches that a resumed run repeats
        for names, axis in (("by_batch/*", "batch"), ("train/*", "epoch"), ("valid/*", "epoch")):
            self.run.define_metric(names, step_metric=axis)

    def logged(self, part: EpochReporter) -> None:
        values = {f"by_batch/{name}": value for name, value in part.last_window.items()}
        self.run.log({**values, "batch": part.batches_before + part.batches})

    def epoch_done(self, epoch: int, reporter: Reporter, model: nn.Module) -> None:
        values = {f"{phase}/{name}": v for phase, means in reporter.stats[epoch].items() for name, v in means.items()}
        self.run.log({**values, "epoch": epoch})

    def close(self) -> None:
        self.run.finish()
